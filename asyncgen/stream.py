"""One answer on its way: the reading end of a request.

A :class:`TextStream` posts its request at the first read and then only empties its mailbox. It
cancels the request when it is left in any way: ``break``, ``aclose``, a cancelled task or scope,
an exception in the loop's body, or simply being dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
import anyio.to_thread

from asyncgen.engine.requests.request import clock
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.types import Completion, Sample, Timing, TokenEvent, Usage
from streamers import Mailbox, Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping
    from types import TracebackType

    from asyncgen.engine.loop import DecodeThread
    from asyncgen.engine.requests.admission import Admission, Seat
    from asyncgen.engine.requests.request import Request
    from asyncgen.opening import Opened
    from asyncgen.types import FinishReason, Prompt, TokenLogprob


READER_PACE = 0.008
"""Seconds, half a frame of a screen. The reader of a model that is faster than this is not
woken for each token: at 800 tokens a second that would cost the decode thread a tenth of its time.
"""


@dataclass(slots=True)
class SampleBuilder:
    """Collects the events of one sample until it is read out as a :class:`Sample`.

    Attributes:
        index: Which sample of the request.
        texts: Its text, in pieces.
        token_ids: Its ids.
        logprobs: One entry an id, if asked for.
        finish_reason: Why it ended; ``None`` while it goes on.
        stop_reason: What ended it, as in `Sample`.
        first_at: Seconds from acceptance to its first token; ``None`` without one.
        last_at: The same for its newest token.
        num_steps: Steps that gave it tokens.
    """

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    first_at: float | None = None
    last_at: float = 0.0
    num_steps: int = 0

    def add(self, event: TokenEvent) -> None:
        """Take in one event of this sample."""
        if event.text:
            self.texts.append(event.text)
        if event.token_ids:
            self.token_ids += event.token_ids
            self.num_steps += 1
            self.last_at = event.time
            if self.first_at is None:
                self.first_at = event.time
        if event.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *event.logprobs]
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            self.stop_reason = event.stop_reason

    def build(self, unfinished: FinishReason = "cancelled") -> Sample:
        """Freeze; ``unfinished`` is the finish reason of a sample that got none."""
        return Sample(
            index=self.index,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason or unfinished,
            stop_reason=self.stop_reason,
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
        )


class TextStream:
    """An async iterator of text; also of events, and a result at the end.

    ``async for text in stream`` gives the text as it comes, merged where the reader was slow.
    ``async with stream`` starts the request on entry and cancels it on exit, at a known moment.
    A stream is read once, by one task.
    """

    def __init__(
        self,
        thread: DecodeThread[Opened],
        admission: Admission,
        prompt: Prompt,
        params: Mapping[str, Any],
    ) -> None:
        """Keep what will be posted; use ``AsyncLLM.stream``."""
        self._thread = thread
        self._admission = admission
        self._prompt = prompt
        self._params = params
        self._cancel = CancelCriteria()
        # A loop that ended with the stream unread is a reader that left.
        self._mailbox: Mailbox[TokenEvent | BaseException] = Mailbox(
            self._cancel.set, pace=READER_PACE
        )
        self._request: Request | None = None
        self._num_samples = 1
        self._unread: deque[TokenEvent] = deque()
        self._samples: dict[int, SampleBuilder] = {}
        self._last: TokenEvent | None = None
        self._failure: BaseException | None = None
        self._reading = False
        self._left = False
        self._result: Completion | None = None

    def __aiter__(self) -> AsyncIterator[str]:
        """Read text. Dropping the iterator (a ``break``) cancels the stream."""
        return Reader(self._next_text, self._leave, self._abandon)

    def events(self) -> AsyncIterator[TokenEvent]:
        """Read events instead of text: ids, log-probabilities, several samples by index."""
        return Reader(self._next_event, self._leave, self._abandon)

    def __anext__(self) -> Awaitable[str]:
        """The text since the last read, at least one character.

        Raises:
            StopAsyncIteration: The stream has ended; see :attr:`result`.
            InvalidRequestError: The stream has several samples: read :meth:`events`.
            Exception: What the request raised.
        """
        return self._next_text()

    async def __aenter__(self) -> Self:
        """Start the request: tokenize, check, post.

        Raises:
            InvalidRequestError: A value or combination that is not allowed.
            ContextLengthError: The prompt and the tokens asked for exceed the context, or the
                memory of the engine.
            OverloadedError: The queue is full; nothing was tokenized.
        """
        if self._reading:
            raise anyio.BusyResourceError("reading from")
        self._reading = True
        try:
            await self._start()
        finally:
            self._reading = False
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; cancels what still runs."""
        self._leave()

    async def aclose(self) -> None:
        """Leave; cancels what still runs. Idempotent; :attr:`result` is frozen afterwards."""
        self._leave()

    def cancel(self) -> None:
        """Ask the request to end with ``"cancelled"``; the stream can be read to its end.

        May be called from any thread, any number of times.
        """
        self._cancel.set()
        if self._request is not None:
            self._thread.cancel(self._request)

    @property
    def result(self) -> Completion:
        """What was generated, with finish reason, usage and timings, once the stream has ended.

        Raises:
            RuntimeError: The stream is still being read.
        """
        if self._result is None:
            if not self._ended:
                raise RuntimeError("no result yet; read the stream to its end or close it first")
            self._collect()
            self._result = self._build_result()
        return self._result

    def __del__(self) -> None:
        """A dropped stream is cancelled, silently, in whatever thread drops it."""
        self._abandon()

    @property
    def _ended(self) -> bool:
        """Whether nothing more will be read."""
        return self._left or self._last is not None or self._failure is not None

    async def _start(self) -> None:
        """Post the request, once."""
        if self._request is not None or self._ended:
            return
        place: Seat | None = None
        try:
            self._thread.start()
            opened = await self._thread.wait_ready()
            place = self._admission.enter()
            request = await anyio.to_thread.run_sync(
                _prepare,
                opened,
                self._prompt,
                self._params,
                self._cancel,
                self._mailbox,
                place,
                abandon_on_cancel=True,
            )
            self._thread.post(request)
        except BaseException as error:
            if place is not None:
                place.left()
            if isinstance(error, Exception):
                self._failure = error
            self._leave()
            raise
        self._request = request
        self._num_samples = request.params.num_samples
        if self._cancel.flag:
            # Cancelled from elsewhere while it was being prepared: it may wait in the queue.
            self._thread.cancel(request)

    async def _next_text(self) -> str:
        unread = self._unread
        while True:
            await self._fill(as_text=True)
            text = unread.popleft().text
            while unread:
                text += unread.popleft().text
            if text:
                return text

    async def _next_event(self) -> TokenEvent:
        await self._fill(as_text=False)
        return self._unread.popleft()

    async def _fill(self, *, as_text: bool) -> None:
        """Return when something is unread; raise at the end of the stream."""
        if self._reading:
            raise anyio.BusyResourceError("reading from")
        self._reading = True
        mailbox = self._mailbox
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
                # A reader slower than the model never waits; the loop gets its turn all the same.
                await anyio.lowlevel.checkpoint()
            else:
                await mailbox.wait()
            if not self._left:
                self._collect()
                # Closed by the sender: the loop it was made in ended before this one read.
                self._left = mailbox.closed
        except BaseException:
            self._leave()
            raise
        finally:
            self._reading = False
        if self._unread:
            return
        failure = self._failure
        if isinstance(failure, StopIteration | StopAsyncIteration):
            # Raised as it is, it would end the reader's loop as if all were well.
            raise RuntimeError(f"the request raised {failure!r}") from failure
        if failure is not None:
            raise failure
        raise StopAsyncIteration

    def _collect(self) -> None:
        """Take over what the decode thread has put."""
        samples = self._samples
        for item in self._mailbox.drain():
            if isinstance(item, BaseException):
                self._failure = item
                continue
            self._unread.append(item)
            if item.index not in samples:
                samples[item.index] = SampleBuilder(item.index)
            samples[item.index].add(item)
            if item.usage is not None:
                self._last = item

    def _leave(self) -> None:
        """Stop reading: keep what is there, cancel the rest."""
        self._collect()
        self._unread.clear()
        if not self._ended:
            self._mailbox.close()  # wakes a task that may be waiting
        self._abandon()

    def _abandon(self) -> None:
        """Stop reading without taking a lock, as a finalizer must."""
        if not self._ended:
            if not self._reading:  # a task that waits is woken by the last event
                self._mailbox.abandon()
            self.cancel()
        self._left = True

    def _build_result(self) -> Completion:
        builders = (self._samples.get(row, SampleBuilder(row)) for row in range(self._num_samples))
        unfinished: FinishReason = "cancelled" if self._failure is None else "error"
        samples = tuple(builder.build(unfinished) for builder in builders)
        return Completion(samples, self._usage(), self._timing())

    def _usage(self) -> Usage:
        if self._last is not None and self._last.usage is not None:
            return self._last.usage
        prompt = len(self._request.prompt_ids) if self._request is not None else 0
        return Usage(prompt, sum(len(sample.token_ids) for sample in self._samples.values()))

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


def _prepare(
    opened: Opened,
    prompt: Prompt,
    params: Mapping[str, Any],
    cancel: CancelCriteria,
    sink: Mailbox[TokenEvent | BaseException],
    place: Seat,
) -> Request:
    """Runs on a worker thread. Imported late, because it brings torch."""
    from asyncgen.engine.requests.prepare import prepare_request

    return prepare_request(
        opened.model,
        opened.tokenizer,
        prompt,
        params,
        cancel=cancel,
        sink=sink,
        room=opened.room,
        place=place,
    )
