"""An engine in another process, behind a pipe: the applications cannot tell it from an `AsyncLLM`.

Whatever crosses is pickled. Downwards go :class:`Order` values, upwards batches of :class:`News`,
all that came about in one turn of the child's loop. Run as a program, this is the child.
"""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
import threading
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread

from asyncgen import (
    AsyncLLM,
    Completion,
    Embedding,
    EngineDiedError,
    GenerationConfig,
    InvalidRequestError,
    MetricsSnapshot,
    Timing,
    TokenEvent,
    Tokenizer,
    Usage,
)
from asyncgen.engine.output.sample_builder import SampleBuilder
from streamers import Mailbox, Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from types import TracebackType

    from asyncgen import Prompt

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


Question: TypeAlias = Literal["apply_chat_template", "count", "embed", "measure", "tokenize"]


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the parent; ``number`` names the answer to it."""

    number: int
    kind: Literal["stream", "cancel", "leave"] | Question
    given: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """Something for an order: a value, an event, what it raised, or ``None`` at its end."""

    number: int
    item: Any


@dataclass(frozen=True, slots=True)
class Begun:
    """A stream has started."""

    prompt_ids: list[int]
    seed: int
    position: tuple[int, ...]
    is_separated: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of the engine that the parent keeps."""

    fingerprint: str | None
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    config: object


@dataclass(frozen=True, slots=True)
class Batch:
    """All that came about in a turn of the loop, and how the engine does."""

    news: list[News]
    is_healthy: bool
    is_degraded: bool


class EngineProcess:
    """An `AsyncLLM` in a child process, as `asyncgen_apps.engine.Engine` wants one.

    May be used from any event loop, on asyncio and trio. If the child ends, every stream raises
    `EngineDiedError`.
    """

    def __init__(self, source: str, **options: Any) -> None:
        """Start the child, and wait until its model is loaded."""
        self._pipe, theirs = Pipe()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Mailbox[Any]] = {}
        self._degraded = False
        # A finalizer may leave a stream, and so must wait for no lock: orders go by way of this.
        self._orders: SimpleQueue[bytes | None] = SimpleQueue()
        self._pipe.send((source, options))
        assert self._pipe.poll(PATIENCE), "the child said nothing"
        self._facts: Facts = self._pipe.recv()
        self.is_healthy = True
        works = (self._read, self._write)
        self._threads = [threading.Thread(target=one, name="engine-process") for one in works]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the child; idempotent."""
        if self._pipe.closed:
            return
        self._orders.put(pickle.dumps(None))
        try:
            self._child.wait(PATIENCE)
        finally:
            self._child.kill()
            self._child.wait()
            self._orders.put(None)
            for thread in self._threads:
                thread.join(PATIENCE)
            self._pipe.close()
        assert not any(thread.is_alive() for thread in self._threads)

    def kill(self) -> None:
        """End the child without a word, as the system does that is out of memory."""
        self._child.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await anyio.to_thread.run_sync(self.close)

    @property
    def is_degraded(self) -> bool:
        return self._degraded

    @property
    def fingerprint(self) -> str | None:
        return self._facts.fingerprint

    @property
    def tokenizer(self) -> Tokenizer:
        return self._facts.tokenizer

    @property
    def config(self) -> object:
        return self._facts.config

    @property
    def generation_config(self) -> GenerationConfig:
        return self._facts.generation_config

    def stream(self, prompt: Prompt, **params: Any) -> PipedStream:
        if not self.is_healthy:
            raise _died()
        return PipedStream(self, prompt, params)

    async def generate(self, prompt: Prompt, **params: Any) -> Completion:
        """As `AsyncLLM.generate`; tests compare with it."""
        async with self.stream(prompt, **params) as stream:
            async for _ in stream.events():
                pass
        return stream.result

    async def count_tokens(self, prompt: Prompt, **params: Any) -> int:
        return int(await self._ask("count", prompt, params))

    async def tokenize(self, prompt: Prompt, **params: Any) -> list[int]:
        found: list[int] = await self._ask("tokenize", prompt, params)
        return found

    async def apply_chat_template(self, messages: Sequence[Any], **params: Any) -> str:
        return str(await self._ask("apply_chat_template", messages, params))

    async def measure(self) -> MetricsSnapshot:
        found: MetricsSnapshot = await self._ask("measure")
        return found

    async def embed(self, prompt: Sequence[str | Sequence[int]], **params: Any) -> list[Embedding]:
        found: list[Embedding] = await self._ask("embed", prompt, params)
        return found

    async def _ask(self, kind: Question, *given: Any) -> Any:
        number, mailbox = self.order(kind, *given)
        try:
            await mailbox.wait()
            (item,) = mailbox.drain()
        finally:
            self.forget(number)
            self.send(Order(number, "leave"))
        if isinstance(item, Exception):
            raise item
        return item

    def order(self, kind: Literal["stream"] | Question, *given: Any) -> Any:
        """Give an order; return its number, and where what comes of it arrives."""
        number, mailbox = next(self._numbers), Mailbox[Any]()
        with self._lock:
            if not self.is_healthy:
                raise _died()
            self._waiting[number] = mailbox
        try:
            self.send(Order(number, kind, given))
        except BaseException:
            self.forget(number)  # something in it cannot be pickled
            raise
        return number, mailbox

    def send(self, order: Order) -> None:
        """Send an order, from any thread; a child that is dead is noticed where it is read."""
        self._orders.put(pickle.dumps(order))

    def forget(self, number: int) -> None:
        """Nobody waits for this any more."""
        self._waiting.pop(number, None)

    def _write(self) -> None:
        with suppress(OSError):
            while (order := self._orders.get()) is not None:
                self._pipe.send_bytes(order)

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                batch: Batch = self._pipe.recv()
                self.is_healthy, self._degraded = batch.is_healthy, batch.is_degraded
                for news in batch.news:
                    mailbox = self._waiting.get(news.number)
                    if mailbox is not None:
                        mailbox.put_nowait(news.item)
        with self._lock:
            self.is_healthy = False
            waiting, self._waiting = self._waiting, {}
        for mailbox in waiting.values():
            mailbox.put_nowait(_died())


class PipedStream:
    """One answer of the child, as `asyncgen_apps.engine.EngineStream` wants one."""

    def __init__(self, engine: EngineProcess, prompt: Prompt, params: dict[str, Any]) -> None:
        self._engine = engine
        self._prompt = prompt
        self._params = params
        self._number: int | None = None
        self._mailbox: Mailbox[Any] = Mailbox()
        self._begun: Begun | None = None
        self._is_cancelled = False
        self._ended = False
        self._failure: Exception | None = None
        self._last: TokenEvent | None = None
        self._unread: deque[TokenEvent] = deque()
        self._samples: dict[int, SampleBuilder] = {}
        self._keeps_logprobs = True

    @property
    def _told(self) -> Begun:
        if self._begun is None:
            raise RuntimeError("the stream has not started")
        return self._begun

    @property
    def prompt_ids(self) -> list[int]:
        return list(self._told.prompt_ids)

    @property
    def seed(self) -> int:
        return self._told.seed

    def drop_logprobs(self) -> None:
        self._keeps_logprobs = False

    @property
    def is_separated(self) -> bool:
        return self._told.is_separated

    @property
    def prompt_progress(self) -> None:
        """Nobody tells."""

    @property
    def position(self) -> tuple[int, ...]:
        counts = list(self._told.position)
        for index, sample in self._samples.items():
            counts[index] += len(sample.token_ids)
        for event in self._unread:
            counts[event.index] -= len(event.token_ids)
        return tuple(counts)

    @property
    def result(self) -> Completion:
        if not self._ended:
            raise RuntimeError("no result yet")
        self._take()
        rows = range(len(self._begun.position) if self._begun is not None else 1)
        unfinished: Any = "cancelled" if self._failure is None else "error"
        built = (self._samples.get(row, SampleBuilder(row)).build(unfinished) for row in rows)
        samples = tuple(built)
        if self._last is not None and self._last.usage and self._last.timing:
            return Completion(samples, self._last.usage, self._last.timing)
        prompt = len(self._begun.prompt_ids) if self._begun is not None else 0
        usage = Usage(prompt, sum(len(sample.token_ids) for sample in samples))
        return Completion(samples, usage, Timing(None, None, 0.0, None))

    async def __aenter__(self) -> Self:
        if self._number is not None or self._ended:
            return self
        try:
            self._number, self._mailbox = self._engine.order("stream", self._prompt, self._params)
            if self._is_cancelled:
                self.cancel()
            await self._mailbox.wait()
        except BaseException as error:
            self._failure = error if isinstance(error, Exception) else None
            self._leave()
            raise
        self._take()
        if self._failure is not None:
            raise self._failure
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()

    async def aclose(self) -> None:
        self._leave()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._number is not None and not self._ended:
            self._engine.send(Order(self._number, "cancel"))

    def events(self) -> AsyncIterator[TokenEvent]:
        return Reader(self._next_event, self._leave, self._abandon)

    def __aiter__(self) -> AsyncIterator[str]:
        return Reader(self._next_text, self._leave, self._abandon)

    async def _next_event(self) -> TokenEvent:
        try:
            await self.__aenter__()
            await anyio.lowlevel.checkpoint()
            while not self._unread and not self._ended:
                await self._mailbox.wait()
                self._take()
        except BaseException:
            self._leave()
            raise
        if self._unread:
            return self._unread.popleft()
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def _next_text(self) -> str:
        text = ""
        while not text:
            text = (await self._next_event()).text
            if len(self._told.position) > 1:
                self._leave()
                raise InvalidRequestError("num_return_sequences", 2, "read `events()`")
            while self._unread:
                text += self._unread.popleft().text
        return text

    def _take(self) -> None:
        """Take over what has arrived."""
        for item in self._mailbox.drain():
            if isinstance(item, Begun):
                self._begun = item
            elif isinstance(item, TokenEvent):
                self._unread.append(item)
                builder = SampleBuilder(item.index, self._keeps_logprobs)
                self._samples.setdefault(item.index, builder).add(item)
                self._last = item
            else:
                self._failure = item
                self._ended = True
                self._engine.forget(self._number or 0)

    def _leave(self) -> None:
        """Stop reading; what still runs is cancelled."""
        self._take()
        self._unread.clear()
        self._abandon()
        self._mailbox.close()

    def _abandon(self) -> None:
        """The same without taking a lock, as a finalizer must, from any thread."""
        if not self._ended:
            self._mailbox.abandon()
            if self._number is not None:
                self._engine.send(Order(self._number, "leave"))
                self._engine.forget(self._number)
        self._ended = True

    def __del__(self) -> None:
        self._abandon()


def _died() -> EngineDiedError:
    return EngineDiedError("the engine's process has ended")


@contextmanager
def engine_process(source: str = "demo", **options: Any) -> Iterator[EngineProcess]:
    """A child for as long as the block runs."""
    engine = EngineProcess(source, **options)
    try:
        yield engine
    finally:
        engine.close()


@dataclass
class _Child:
    """The other end of the pipe."""

    pipe: Connection
    llm: AsyncLLM
    streams: dict[int, Any] = field(default_factory=dict)
    outbox: list[News] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)

    async def run(self) -> None:
        """Follow orders until there are no more."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._send)
            while (order := await anyio.to_thread.run_sync(self._receive)) is not None:
                stream = self.streams.get(order.number)
                if order.kind == "stream":
                    group.start_soon(self._stream, order)
                elif order.kind in ("count", "embed", "measure"):
                    group.start_soon(self._answer, order)
                elif stream is not None and order.kind == "cancel":
                    stream.cancel()
                elif stream is not None:
                    await stream.aclose()
            group.cancel_scope.cancel()

    def _receive(self) -> Order | None:
        try:
            found: Order | None = self.pipe.recv()
        except EOFError:
            return None
        return found

    async def _answer(self, order: Order) -> None:
        with anyio.CancelScope() as scope:
            self.streams[order.number] = _Left(scope)
            await self._answer_now(order)
        self.streams.pop(order.number, None)

    async def _answer_now(self, order: Order) -> None:
        try:
            if order.kind == "measure":
                self._tell(order, await self.llm.measure())
            elif order.kind == "embed":
                texts, params = order.given
                self._tell(order, await self.llm.embed(texts, **params))
            elif order.kind == "tokenize":
                prompt, params = order.given
                self._tell(order, await self.llm.tokenize(prompt, **params))
            elif order.kind == "apply_chat_template":
                messages, params = order.given
                self._tell(order, await self.llm.apply_chat_template(messages, **params))
            else:
                prompt, params = order.given
                count = await self.llm.count_tokens(prompt, **params)
                self._tell(order, count)
        except Exception as error:
            self._tell(order, _portable(error))

    async def _stream(self, order: Order) -> None:
        prompt, params = order.given
        try:
            stream = self.llm.stream(prompt, **params)
            self.streams[order.number] = stream
            async with stream:
                self._tell(
                    order,
                    Begun(stream.prompt_ids, stream.seed, stream.position, stream.is_separated),
                )
                async for event in stream.events():
                    self._tell(order, event)
            self._tell(order, None)
        except Exception as error:
            self._tell(order, _portable(error))
        finally:
            self.streams.pop(order.number, None)

    def _tell(self, order: Order, item: Any) -> None:
        self.outbox.append(News(order.number, item))
        self.news.set()

    async def _send(self) -> None:
        """Send what came about since the last time."""
        while True:
            await self.news.wait()
            self.news = anyio.Event()
            news, self.outbox = self.outbox, []
            self.pipe.send(Batch(news, self.llm.is_healthy, self.llm.is_degraded))


@dataclass
class _Left:
    """Request that is asked once, and cancelled by its caller."""

    scope: anyio.CancelScope

    async def aclose(self) -> None:
        self.scope.cancel()


def _portable(error: Exception) -> Exception:
    """The error, or what can be said of one that cannot be pickled, as some of users cannot."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


async def _child(pipe: Connection) -> None:
    source, options = pipe.recv()
    async with AsyncLLM(source, **options) as llm:
        pipe.send(Facts(llm.fingerprint, llm.tokenizer, llm.generation_config, llm.config))
        await _Child(pipe, llm).run()


if __name__ == "__main__":
    # Under its own name, which is what the parent's pickles say.
    from tests.apps import engine_process as _here

    with suppress(BrokenPipeError):
        anyio.run(_here._child, Connection(int(sys.argv[1])))
