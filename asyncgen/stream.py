"""One answer on its way: the reading end of a request.

A :class:`TextStream` posts its request at the first read and then only empties its mailbox. It
cancels the request when it is left in any way: ``break``, ``aclose``, a cancelled task or scope,
an exception in the loop's body, or simply being dropped.
"""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

import anyio
import anyio.lowlevel

from asyncgen.engine.requests.request import clock
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.rules import Range, require
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.pace import Pace
from asyncgen.sample_builder import SampleBuilder
from asyncgen.types import Completion, Timing, TokenEvent, Usage, counted, length_of, size_of
from streamers import Mailbox, Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping
    from types import TracebackType

    from asyncgen.engine.loop import DecodeThread
    from asyncgen.engine.requests.admission import Admission, Seat
    from asyncgen.engine.requests.request import Request
    from asyncgen.opening import Opened
    from asyncgen.preparing import PreparingThreads
    from asyncgen.types import FinishReason, Prompt


READER_PACE = 0.008
"""Seconds, half a frame of a screen. The reader of a model that is faster than this is not
woken for each token: at 800 tokens a second that would cost the decode thread a tenth of its time.
"""


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
        preparing: PreparingThreads,
        prompt: Prompt,
        params: Mapping[str, Any],
    ) -> None:
        """Keep what will be posted; use ``AsyncLLM.stream``."""
        self._thread = thread
        self._admission = admission
        self._preparing = preparing
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

    def batches(self, *, interval: float = 0.05) -> AsyncIterator[str]:
        """Read text in few pieces: everything that arrived since the last one, at most so often.

        For what costs something for every piece: messages of a socket, repainting a terminal,
        remote procedure calls. The first text comes at once, the last one within 0.05 s of the
        end. Joined, the pieces are the text; leaving and errors are as in a plain loop.

        Args:
            interval: Least seconds between two pieces, from 0; 0 is a plain loop.

        Raises:
            InvalidRequestError: An interval that is none; from the first read, several samples.
        """
        require("interval", interval, Range(0, note="seconds between two pieces"))
        return Reader(partial(self._next_batch, Pace(interval)), self._leave, self._abandon)

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
            OverloadedError: The queue is full, or too many texts hang; nothing was tokenized.
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

    def __repr__(self) -> str:
        """How far it is: state, length of the prompt, and what was read; never what was said."""
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
        return f"<TextStream {state}: prompt of {prompt}, {counted(tokens, 'token')} read>"

    if not TYPE_CHECKING:  # checkers refuse both by themselves, as long as they see neither

        def __await__(self) -> NoReturn:
            """Say what to write instead."""
            raise TypeError(
                "a stream is not awaited: read it with `async for text in llm.stream(…)`, or write "
                "`await llm.generate(…)` for the whole answer"
            )

        def __iter__(self) -> NoReturn:
            """Say what to write instead."""
            raise TypeError(
                "a stream is read with `async for`, inside of `async def`; for the whole answer "
                "write `await llm.generate(…)`"
            )

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
            place = self._admission.enter(self._params.get("client"))
            prompt, params = self._prompt, self._params
            prepare = partial(_prepare, opened, prompt, params, self._cancel, self._mailbox, place)
            # A method may have to be fetched from the hub first, which takes what it takes.
            is_here = not isinstance(params.get("custom_generate"), str | os.PathLike)
            length = length_of(prompt)
            request = await self._preparing.run(prepare, length=length, limited=is_here)
            self._thread.post(request)
        except BaseException as error:
            if place is not None:
                place.left()
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
        unread = self._unread
        while True:
            await self._fill(as_text=True)
            text = unread.popleft().text
            while unread:
                text += unread.popleft().text
            if text:
                return text

    async def _next_batch(self, pace: Pace) -> str:
        if self._reading:
            raise anyio.BusyResourceError("reading from")
        self._reading = True
        try:
            await pace.turn(self._is_over)
        except BaseException:
            self._leave()
            raise
        finally:
            self._reading = False
        text = await self._next_text()
        pace.took()
        return text

    def _is_over(self) -> bool:
        """Whether the last event is there, read or not."""
        if not self._left:
            self._collect()
        return self._ended

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
            raise _no_end(failure) from failure
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


def _no_end(failure: Exception) -> RuntimeError:
    """What is raised for an exception that would end the reader's loop as if all were well."""
    return RuntimeError(f"the request raised {failure!r}")


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
