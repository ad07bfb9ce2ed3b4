"""One answer on its way, whoever reads it: what `TextStream` and `SyncTextStream` have in common.

An :class:`Answer` posts its request at the first read and then only empties its mailbox. It cancels
the request when it is left in any way: ``break``, a close, a cancelled task or scope, Ctrl-C, an
exception in the loop's body, or simply being dropped. How its reader waits it is told.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen.engine.output.sample_builder import SampleBuilder
from asyncgen.engine.requests.admission import Seat
from asyncgen.engine.requests.request import clock
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.rules import Range, require
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.llm.batch_interval import Pace
from asyncgen.runtime.deprecation import renamed
from asyncgen.runtime.exact_values import BUILT_IN
from asyncgen.runtime.user_code import run_user_code
from asyncgen.structured.answer_reader import AnswerReader
from asyncgen.types import (
    Completion,
    PromptProgress,
    Timing,
    TokenEvent,
    Usage,
    counted,
    length_of,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from typing import NoReturn

    from asyncgen.engine.requests.admission import Admission
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.thread import DecodeThread
    from asyncgen.llm.opening import Opened
    from asyncgen.llm.preparing import PreparingThreads
    from asyncgen.llm.reader_wait import Inbox, Waiting
    from asyncgen.types import FinishReason, Prompt, TokenLogprob


def _prepare(
    opened: Opened,
    prompt: Prompt,
    params: Mapping[str, Any],
    cancel: CancelCriteria,
    sink: Inbox,
    place: Seat,
) -> Request:
    """Runs on a worker thread. Imported late, because it brings torch."""
    from asyncgen.engine.requests.prepare import prepare_request

    prepare = partial(prepare_request, opened.served, prompt, params)
    if not BUILT_IN.issuperset(map(type, (prompt, *params.values()))):
        from asyncgen.runtime.plain_values import is_plain

        if not (is_plain(params) and is_plain(prompt)):
            prepare = partial(run_user_code, prepare)
    return prepare(cancel=cancel, sink=sink, place=place)


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """Ways of a request into an engine: its queue, its preparing threads, its decode thread."""

    thread: DecodeThread[Opened]
    admission: Admission
    preparing: PreparingThreads


class Answer:
    """A request from its parameters to its result; read once, by one task or thread.

    Attributes:
        prepare: Makes the request, on a worker thread; knows nothing of the answer.
    """

    prepare: Callable[..., Request] = staticmethod(_prepare)
    _left = True  # while it is being made

    def __init__(
        self,
        engine: EngineAccess,
        prompt: Prompt,
        params: Mapping[str, Any],
        waiting: Waiting,
    ) -> None:
        """Keep what will be posted; use ``AsyncLLM.stream`` or ``LLM.stream``."""
        self._thread = engine.thread
        self._admission = engine.admission
        self._preparing = engine.preparing
        self._prompt = prompt
        self._params = params
        self._waiting = waiting
        self._cancel = CancelCriteria()
        self._mailbox = waiting.inbox(self._cancel.set)
        self._request: Request | None = None
        self._num_samples = 1
        self._arrived: deque[TokenEvent | BaseException] = deque()
        self._unread: deque[TokenEvent] = deque()
        self._num_read: dict[int, int] = {}
        self._samples: dict[int, SampleBuilder] = {}
        self._last: TokenEvent | None = None
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        self._keeps_logprobs = True
        self._failure: BaseException | None = None
        self._read_by: object | None = None
        self._guard = threading.RLock()  # of what was read: another thread may close
        self._result: Completion | None = None
        self._left = False

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, as it is read once.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: it is read once; ask for another"
            " one, or keep its `result`"
        )

    def cancel(self) -> None:
        """Ask the request to end with ``"cancelled"``; the stream can be read to its end.

        May be called from any thread, any number of times.
        """
        self._cancel.set()
        if self._request is not None:
            self._thread.cancel(self._request)

    def drop_logprobs(self) -> None:
        """Leave log-probabilities out of :attr:`result`; events have them. Call it before a read.

        With ``top_logprobs`` they are the most of an answer, kilobytes a token, and a reader of
        events may need them only once.
        """
        self._keeps_logprobs = False

    @property
    def result(self) -> Completion:
        """Result of the ended stream: what was generated, finish reason, usage and timings.

        Raises:
            RuntimeError: The stream is still being read.
        """
        if self._result is None:
            if not self._ended:
                raise RuntimeError("no result yet; read the stream to its end or close it first")
            self._collect()
            self._result = self._build_result()
        return self._result

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt, once the stream was entered or read; a copy.

        Raises:
            RuntimeError: It has not started.
        """
        return list(self._begun.prompt_ids)

    @property
    def seed(self) -> int:
        """Seed of its draws: the one that was given, or the one that was drawn for it.

        Raises:
            RuntimeError: It has not started.
        """
        return self._begun.params.seed

    @property
    def position(self) -> tuple[int, ...]:
        """Number of tokens of each sample that were read; ``generated_ids`` count.

        Together with ``prompt_ids``, ``seed``, the ids that were read and the other parameters it
        says where the stream is: another engine can go on from there.

        Raises:
            RuntimeError: It has not started.
        """
        given = self._begun.params.generated_ids or ((),) * self._num_samples
        return tuple(len(ids) + self._num_read.get(index, 0) for index, ids in enumerate(given))

    @property
    def prompt_progress(self) -> PromptProgress:
        """How much of the prompt has been read; for whoever shows that while a long one is.

        A request that runs alone tells nothing before its first token. What is taken out of the
        memory for others, and read again, counts anew.

        Raises:
            RuntimeError: It has not started.
        """
        request, progress = self._begun, self._begun.progress
        total, started, first = (
            len(request.prompt_ids),
            progress.started_at,
            progress.first_token_at,
        )
        sequence = progress.sequence
        if first is not None:
            processed = total
        else:
            processed = 0 if sequence is None else min(sequence.num_computed, total)
        seconds = 0.0 if started is None else (clock() if first is None else first) - started
        return PromptProgress(total, min(progress.cached_tokens, processed), processed, seconds)

    @property
    def is_separated(self) -> bool:
        """True if its events tell reasoning or calls of tools apart from the text.

        Raises:
            RuntimeError: It has not started.
        """
        return self._begun.reading is not None

    @property
    def is_exact(self) -> bool:
        """True if its tokens are promised to be those of any engine of the same fingerprint.

        Behind ``generated_ids`` that needs the ``fingerprint`` of the engine that generated them.

        Raises:
            RuntimeError: It has not started.
        """
        return self._begun.is_exact

    separates = renamed("separates", "is_separated")
    exact = renamed("exact", "is_exact")

    def __repr__(self) -> str:
        """Show the state, the length of the prompt and the tokens read; never a text."""
        if self._failure is not None:
            state = f"failed ({type(self._failure).__name__})"
        elif self._last is not None:
            reasons = dict.fromkeys(each.finish_reason for each in self._samples.values())
            state = f"ended ({', '.join(map(str, reasons))})"
        elif self._left:
            state = "left"
        elif self._request is None:
            state = "starting" if self._reading else "not started"
        else:
            state = "running"
        request, tokens = self._request, sum(len(one.token_ids) for one in self._samples.values())
        given = size_of(self._prompt)
        prompt = given if request is None else counted(len(request.prompt_ids), "token")
        read = counted(tokens, "token")
        return f"<{type(self).__name__} {state}: prompt of {prompt}, {read} read>"

    def __del__(self) -> None:
        """A dropped stream is cancelled, silently, in whatever thread drops it."""
        self._abandon()

    @property
    def _ended(self) -> bool:
        """True if nothing more will be read."""
        return self._left or self._last is not None or self._failure is not None

    @property
    def _begun(self) -> Request:
        """The request, once there is one."""
        if self._request is None:
            raise RuntimeError("the stream has not started; enter it, or read from it first")
        return self._request

    @property
    def _reading(self) -> bool:
        """True if somebody reads."""
        return self._read_by is not None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Read, which only one may do at a time."""
        reader = object()
        try:
            with self._guard:
                if self._read_by is None:
                    self._read_by = reader
            if self._read_by is not reader:
                raise anyio.BusyResourceError("reading from")
            yield
        finally:
            if self._read_by is reader:
                self._read_by = None

    async def _begin(self) -> None:
        """Post the request, if no read has."""
        with self._alone():
            await self._start()

    async def _start(self) -> None:
        """Post the request, once."""
        if self._request is not None or self._ended:
            return
        place = request = None
        try:
            self._thread.start()
            opened = await self._waiting.loaded(self._thread)
            place = Seat(self._admission, self._params.get("client"))
            place.enter()
            prompt, params = self._prompt, self._params
            given = opened, prompt, params, self._cancel, self._mailbox, place
            prepare = partial(self.prepare, *given)
            # A method may have to be fetched from the hub first, which takes what it takes.
            is_here = not isinstance(params.get("custom_generate"), str | os.PathLike)
            length = length_of(prompt)
            request = await self._waiting.prepared(
                self._preparing, prepare, length=length, limited=is_here, client=place.client
            )
            self._thread.post(request)
        except BaseException as error:
            if place is not None:
                place.left()
            if request is not None:
                self._thread.cancel(request)  # it may have been posted
            if isinstance(error, Exception):
                self._failure = error
            self._leave()
            if isinstance(error, StopAsyncIteration):
                raise _no_end(error) from error
            raise
        self._request = request
        self._num_samples = request.params.num_samples
        if self._cancel.flag:
            # Cancelled from elsewhere while it was being prepared: it may wait in the queue.
            self._thread.cancel(request)

    async def _next_text(self) -> str:
        while True:
            await self._fill(as_text=True)
            with self._guard:
                text = "".join([self._take().text for _ in range(len(self._unread))])
            if text:
                return text

    def _partial(self) -> Callable[[], Coroutine[Any, Any, Any]]:
        """Return the function that reads the growing value of the answer.

        Raises:
            InvalidRequestError: The answer was not asked for as JSON, or there is no pydantic.
        """
        return AnswerReader(self._params).partial(self._next_text)

    def _pace(self, interval: float) -> Pace:
        """The turns of a reader of batches."""
        require("interval", interval, Range(0, note="seconds between two pieces"))
        return Pace(interval, self._waiting.pause)

    async def _next_batch(self, pace: Pace) -> str:
        await self._come_round(pace)
        text = await self._next_text()
        pace.took()
        return text

    async def _next_events(self, pace: Pace) -> list[TokenEvent]:
        await self._come_round(pace)
        while True:
            await self._fill(as_text=False)
            with self._guard:
                events = [self._take() for _ in range(len(self._unread))]
            if events:
                pace.took()
                return events

    async def _come_round(self, pace: Pace) -> None:
        """Wait until the next batch may be read."""
        with self._alone():
            try:
                await pace.turn(self._is_over)
            except BaseException:
                self._leave()
                raise

    def _is_over(self) -> bool:
        """Tell whether the last event has arrived, read or not."""
        if not self._left:
            self._collect()
        return self._ended

    async def _next_event(self) -> TokenEvent:
        while True:
            await self._fill(as_text=False)
            with self._guard:
                if self._unread:
                    return self._take()

    def _take(self) -> TokenEvent:
        """The oldest unread event, which counts as read."""
        event, counts = self._unread.popleft(), self._num_read
        counts[event.index] = counts.get(event.index, 0) + len(event.token_ids)
        return event

    async def _fill(self, *, as_text: bool) -> None:
        """Return when something may be unread; raise at the end of the stream."""
        mailbox = self._mailbox
        if not (self._unread or self._ended or len(mailbox)):
            self._thread.require_answers()  # code on the decode thread would wait for itself
        with self._alone():
            try:
                if self._request is None:
                    await self._start()
                if as_text and self._num_samples > 1:
                    raise InvalidRequestError(
                        "num_return_sequences",
                        self._num_samples,
                        "several samples are read through `events()`, told apart by `index`",
                    )
                if self._unread or self._ended or len(mailbox):
                    # A reader slower than the model never waits; others get their turn anyway.
                    await self._waiting.turn()
                else:
                    self._thread.require_own_process()
                    await self._waiting.filled(mailbox)
                if not self._left:
                    self._collect()
                    # Closed by the sender: the loop it was made in ended before this one read.
                    self._left = mailbox.closed
            except BaseException:
                self._leave()
                raise
        if self._unread or not self._ended:
            return
        failure = self._failure
        if issubclass(type(failure), StopIteration | StopAsyncIteration):
            raise _no_end(failure) from failure
        if failure is not None:
            raise failure
        raise StopAsyncIteration

    def _collect(self) -> None:
        """Take over what the decode thread has put."""
        samples, arrived = self._samples, self._arrived
        with self._guard:
            arrived += self._mailbox.drain()
            while arrived:  # it goes when it is taken over, whenever Ctrl-C comes
                item = arrived[0]
                if isinstance(item, BaseException):
                    self._failure = item
                    arrived.popleft()
                    continue
                last = None
                if item.usage is not None:
                    last = replace(item, logprobs=None, prompt_logprobs=None)
                self._unread.append(item)
                if item.prompt_logprobs is not None and self._keeps_logprobs:
                    self._prompt_logprobs = item.prompt_logprobs
                if item.index not in samples:
                    samples[item.index] = SampleBuilder(item.index, self._keeps_logprobs)
                samples[item.index].add(item)
                if last is not None:
                    self._last = last
                arrived.popleft()

    def _leave(self) -> None:
        """Stop reading: keep what is there, cancel the rest."""
        with self._guard:
            self._collect()
            self._unread.clear()
            self._mailbox.close()  # wakes who may be waiting
            self._abandon()

    def _abandon(self) -> None:
        """Stop reading without taking a lock, as a finalizer must."""
        if not self._ended:
            if not self._reading:  # a task that waits is woken by the last event
                self._mailbox.abandon()
            self.cancel()
        self._left = True

    def _build_result(self) -> Completion:
        usage, timing = self._usage(), self._timing()
        builders = (self._samples.get(row, SampleBuilder(row)) for row in range(self._num_samples))
        unfinished: FinishReason = "cancelled" if self._failure is None else "error"
        request = self._request
        shape = None if request is None else request.params.output_format
        if request is None or shape is None:
            samples = tuple(builder.build(unfinished) for builder in builders)
        else:
            given = request.given_texts
            samples = tuple(one.build(unfinished, shape, given[one.index]) for one in builders)
        return Completion(samples, usage, timing, self._prompt_logprobs)

    def _usage(self) -> Usage:
        if self._last is not None and self._last.usage is not None:
            return self._last.usage
        request = self._request
        prompt = len(request.prompt_ids) if request is not None else 0
        left_out = request.truncated_tokens if request is not None else 0
        generated = sum(len(sample.token_ids) for sample in self._samples.values())
        return Usage(prompt, generated, truncated_tokens=left_out)

    def _timing(self) -> Timing:
        """Timings of the engine, or what can be said of a stream that was left early."""
        if self._last is not None and self._last.timing is not None:
            return self._last.timing
        total = clock() - self._request.accepted_at if self._request is not None else 0.0
        samples = self._samples.values()
        begun = [one.first_at for one in samples if one.first_at is not None]
        first = min(begun, default=None)
        seconds = 0.0 if first is None else max(one.last_at for one in samples) - first
        steps = sum(sample.num_steps for sample in samples)
        return Timing(None, first, total, (steps - 1) / seconds if seconds > 0 else None)


def _no_end(failure: BaseException | None) -> RuntimeError:
    """Return the error that replaces one which would end the reader's loop silently."""
    return RuntimeError(f"the request raised {failure!r}")
