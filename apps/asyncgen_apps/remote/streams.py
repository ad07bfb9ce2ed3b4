"""Read the answer of an engine in another process as a stream."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel

from asyncgen import AnswerReader, Completion, InvalidRequestError, Timing, TokenEvent, Usage
from asyncgen_apps.remote.messages import StreamStarted
from asyncgen_apps.serving.samples import sample_of
from streamers import LoopBell, Mailbox, Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from asyncgen import FinishReason
    from asyncgen_apps.remote.pump import Pump

_AT_ONCE = 15
"""Events of one message that are read before other tasks run."""


class RemoteStream:
    """An ``asyncgen_apps.engine.EngineStream``; read once, by one task."""

    _has_left = True  # while it is being made

    def __init__(
        self, begin: Callable[[Mailbox[Any]], Pump], params: Mapping[str, Any] | None = None
    ) -> None:
        """Prepare the stream; nothing is sent yet.

        Args:
            begin: Called by the first read: starts the answer, which goes into a mailbox.
            params: Parameters of the request.
        """
        self._begin = begin
        self._answers = AnswerReader(params or {})
        self._mailbox: Mailbox[Any] = Mailbox()
        self._pump: Pump | None = None
        self._bell: LoopBell | None = None
        self._begun: StreamStarted | None = None
        self._is_cancelled = False
        self._keeps_logprobs = True
        self._failure: Exception | None = None
        self._last: TokenEvent | None = None
        self._unread: deque[TokenEvent] = deque()
        self._all: dict[int, list[TokenEvent]] = {}
        self._num_read: Counter[int] = Counter()
        self._turns = 0
        self._has_left = False

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt, once the stream was entered or read."""
        return list(self._started.prompt_ids)

    @property
    def seed(self) -> int:
        """Seed of its random draws."""
        return self._started.seed

    def drop_logprobs(self) -> None:
        """Leave log-probabilities out of ``result``; call it before the first read."""
        self._keeps_logprobs = False

    @property
    def is_separated(self) -> bool:
        """True if its events keep reasoning or tool calls apart from the text."""
        return self._started.is_separated

    @property
    def prompt_progress(self) -> None:
        """An engine of another process does not tell how far it has read."""

    @property
    def position(self) -> tuple[int, ...]:
        """Number of tokens of each sample that were read, with its ``generated_ids``."""
        given = self._started.position
        return tuple(count + self._num_read[index] for index, count in enumerate(given))

    @property
    def result(self) -> Completion:
        """Generated text, once the stream has ended or was closed.

        Structured output has its value in ``parsed``, or the error in ``parse_error``.
        """
        if not self._is_over:
            raise RuntimeError("no result yet; read the stream to its end or close it first")
        rows = range(1 if self._begun is None else len(self._begun.position))
        unfinished: FinishReason = "cancelled" if self._failure is None else "error"
        samples = tuple(sample_of(row, self._all.get(row, ()), unfinished) for row in rows)
        lists = (event.prompt_logprobs for events in self._all.values() for event in events)
        prompt = next((entries for entries in lists if entries is not None), None)
        if self._last is not None and self._last.usage and self._last.timing:
            timing = self._last.timing
            return self._answers.whole(Completion(samples, self._last.usage, timing, prompt))
        length = 0 if self._begun is None else len(self._begun.prompt_ids)
        usage = Usage(length, sum(len(sample.token_ids) for sample in samples))
        timing = Timing(None, None, 0.0, None)
        return self._answers.whole(Completion(samples, usage, timing, prompt))

    async def __aenter__(self) -> Self:
        """Start the request, and wait until an engine has it.

        Raises:
            AsyncgenError: The engine refuses the request.
        """
        if self._begun is None and not self._is_over:
            await self._wait_for(lambda: self._begun is not None)
            if self._failure is not None:
                raise self._failure
        return self

    async def __aexit__(self, *details: object) -> None:
        """Leave; cancels what still runs."""
        self._leave()

    async def aclose(self) -> None:
        """Leave; cancels what still runs. Idempotent."""
        self._leave()

    def cancel(self) -> None:
        """Ask the request to end with ``"cancelled"``; from any thread."""
        self._is_cancelled = True
        if self._pump is not None and self._bell is not None:
            self._bell.ring(self._pump.cancel)

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read the events of each step."""
        return Reader(self._next_event, self._leave, self._abandon)

    def partial(self) -> AsyncIterator[Any]:
        """Read the value of a JSON answer while it grows, as ``asyncgen.TextStream.partial``.

        Raises:
            InvalidRequestError: The request asks for no JSON, or pydantic is not installed.
        """
        return Reader(self._answers.partial(self._next_text), self._leave, self._abandon)

    def __aiter__(self) -> AsyncIterator[str]:
        """Read the text of a single sample."""
        return Reader(self._next_text, self._leave, self._abandon)

    def __del__(self) -> None:
        """Cancel a dropped stream, silently."""
        self._abandon()

    @property
    def _started(self) -> StreamStarted:
        if self._begun is None:
            raise RuntimeError("the stream has not started; enter it, or read from it first")
        return self._begun

    @property
    def _is_over(self) -> bool:
        return self._has_left or self._last is not None or self._failure is not None

    def _start(self) -> None:
        self._bell = LoopBell.current()
        self._pump = self._begin(self._mailbox)
        if self._is_cancelled:
            self._pump.cancel()

    async def _wait_for(self, is_there: Any) -> None:
        """Return when a condition holds or the stream has ended; leave it if interrupted."""
        try:
            if self._pump is None:
                self._start()
            await anyio.lowlevel.checkpoint()
            self._take()
            while not is_there() and not self._is_over:
                await self._mailbox.wait()
                self._take()
        except BaseException:
            self._leave()
            raise

    async def _next_event(self) -> TokenEvent:
        if self._unread and self._turns:
            self._turns -= 1
        elif not self._has_left:
            await self._wait_for(lambda: self._unread)
            self._turns = _AT_ONCE
        if self._unread:
            return self._pop()
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def _next_text(self) -> str:
        text = ""
        while not text:
            text = (await self._next_event()).text
            if len(self._started.position) > 1:
                self._leave()
                allowed = "several samples are read through `events()`, told apart by `index`"
                number = len(self._started.position)
                raise InvalidRequestError("num_return_sequences", number, allowed)
            while self._unread:
                text += self._pop().text
        return text

    def _pop(self) -> TokenEvent:
        """Return the oldest unread event; it counts as read."""
        event = self._unread.popleft()
        self._num_read[event.index] += len(event.token_ids)
        return event

    def _take(self) -> None:
        """Process the items in the mailbox."""
        for item in self._mailbox.drain():
            if isinstance(item, StreamStarted):
                self._begun = item
            elif isinstance(item, list):
                self._unread += item
                for event in item:
                    kept = event if self._keeps_logprobs else _without_logprobs(event)
                    self._all.setdefault(event.index, []).append(kept)
                if item[-1].usage is not None:
                    self._last = _without_logprobs(item[-1])
            else:
                self._failure = item

    def _leave(self) -> None:
        """Stop reading: keep what was received, cancel the rest."""
        self._take()
        self._unread.clear()
        self._abandon()
        self._mailbox.close()

    def _abandon(self) -> None:
        """Cancel the stream without taking its lock, as a finalizer must."""
        if not self._is_over:
            self._mailbox.abandon()
            self.cancel()
        self._has_left = True


def _without_logprobs(event: TokenEvent) -> TokenEvent:
    """Return an event as a result needs it."""
    if event.logprobs is None and event.prompt_logprobs is None:
        return event
    return replace(event, logprobs=None, prompt_logprobs=None)
