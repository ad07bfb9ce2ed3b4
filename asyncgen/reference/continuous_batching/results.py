"""Keep results until a thread reads them: written by the decode thread, read by any other.

A reader takes the next result of all requests, or of one. A result refers to the tokens of its
sequence and copies them only when it is read, so a long answer that is never read costs its tokens
once. The results of a request with a handler are not kept: its event loop gets them.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from asyncgen.engine.output.sample_builder import SampleBuilder
from asyncgen.engine.requests.request import clock
from asyncgen.engine.scheduling.state import GenerationOutput, RequestStatus
from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.beside import Changes
from asyncgen.runtime.request_failure import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.requests.admission import Seat
    from asyncgen.engine.requests.request import Request
    from asyncgen.types import TokenEvent
    from streamers import LoopBell


_log = logging.getLogger("asyncgen.engine")
_ERRORS = {
    "cancelled": "the request was cancelled",
    "aborted": "the manager was stopped before the request was done",
}
"""Errors of sequences that ended early, by finish reason."""


class Collector:
    """Sink of one request: collects its events, and adds a result for each that asks for one.

    Attributes:
        names: Name of each sequence.
        sequences: Collected events of each sequence.
    """

    def __init__(
        self,
        results: Results,
        names: Sequence[str],
        prompt_ids: list[int],
        *,
        created: float,
        place: Seat | None,
        streaming: bool,
        record_timestamps: bool,
    ) -> None:
        """Begin with nothing generated.

        Args:
            results: Gets the results.
            names: Name of each sequence.
            prompt_ids: The prompt.
            created: Clock of the engine when the request was made, in seconds.
            place: Knows when the request left the queue.
            streaming: Whether each step adds a result, beside the last one.
            record_timestamps: Whether to note the time of each token.
        """
        self.names = names
        self.sequences = [SampleBuilder(index) for index in range(len(names))]
        self._results = results
        self._prompt_ids = prompt_ids
        self._created = created
        self._seat = place
        self._streaming = streaming
        self._timestamps: list[list[float] | None] = [
            [] if record_timestamps else None for _ in names
        ]
        self._ended: dict[int, tuple[float, str | None]] = {}  # clock and error of each

    def put_nowait(self, item: TokenEvent | BaseException, /) -> None:
        """Take an event, or the error that ended the request; called on the decode thread."""
        if isinstance(item, BaseException):
            for index in range(len(self.names)):
                self._end(index, clock(), describe(item))
            return
        index, now, timestamps = item.index, self._created + item.time, self._timestamps[item.index]
        self.sequences[index].add(item)
        if timestamps is not None:
            timestamps += [now] * len(item.token_ids)
        if item.finish_reason is not None:
            self._end(index, now, _ERRORS.get(item.finish_reason))
        elif self._streaming and item.token_ids:
            self._results.put(self, index, is_last=False)

    def _end(self, index: int, now: float, error: str | None) -> None:
        if index not in self._ended:
            self._ended[index] = now, error
            self._results.put(self, index, is_last=True)

    def output(self, index: int, num_tokens: int, *, is_last: bool) -> GenerationOutput:
        """Return the result of a sequence as it was after so many tokens."""
        sequence, timestamps = self.sequences[index], self._timestamps[index]
        begun = None if self._seat is None else self._seat.started_at
        ended, error = self._ended[index] if is_last else (-1.0, None)
        status = RequestStatus.DECODING
        if is_last:
            status = RequestStatus.FINISHED if error is None else RequestStatus.FAILED
        return GenerationOutput(
            request_id=self.names[index],
            prompt_ids=list(self._prompt_ids),
            generated_tokens=sequence.token_ids[:num_tokens],
            logprobs=[entry.logprob for entry in (sequence.logprobs or [])[:num_tokens]],
            error=error,
            status=status,
            created_time=self._created,
            lifespan=(-1.0 if begun is None else begun, ended),
            timestamps=None if timestamps is None else timestamps[:num_tokens],
        )


class _Unread(NamedTuple):
    """A result that no reader has taken."""

    collector: Collector
    row: int
    num_tokens: int
    is_last: bool

    def read(self) -> GenerationOutput:
        """Return the result."""
        return self.collector.output(self.row, self.num_tokens, is_last=self.is_last)


class _Handler(NamedTuple):
    """A function that gets the results of a request, in an event loop."""

    function: Callable[[GenerationOutput], object]
    bell: LoopBell

    def ring(self, unread: _Unread) -> bool:
        """Hand over a result; return False if the loop has ended."""
        return self.bell.ring(partial(self._call, unread))

    def _call(self, unread: _Unread) -> None:
        output = unread.read()
        try:
            self.function(output)
        except Exception:
            _log.exception("the result handler of request %s raised", output.request_id)


class Results:
    """Results of many requests in the order in which they came, and by name.

    Attributes:
        num_ended: Sequences that have ended so far.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.num_ended = 0
        self._changed: Changes[tuple[int, GenerationOutput] | bool] = Changes()
        self._numbers = itertools.count()
        self._unread: dict[int, _Unread] = {}
        self._of_name: dict[str, deque[int]] = {}
        self._taken: list[str] = []  # names whose numbers of results that were read are still there
        self._expected: dict[str, Request] = {}
        self._handlers: dict[str, _Handler] = {}

    def expect(self, names: Sequence[str], request: Request) -> None:
        """Reserve names for the sequences of a request that will be posted.

        Raises:
            InvalidRequestError: A name is in use: that request runs, or has unread results.
        """
        with self._changed.lock:
            for name in names:
                if self.is_known(name):
                    raise InvalidRequestError(
                        "request_id", name, "in use; read the results of that request first"
                    )
            self._expected.update(dict.fromkeys(names, request))

    def forget(self, names: Sequence[str]) -> None:
        """Release names whose request was not posted."""
        with self._changed.lock:
            for name in names:
                self._expected.pop(name, None)
            self._changed.notify_all()

    def is_known(self, name: str) -> bool:
        """Return whether a name is reserved, or has unread results."""
        with self._changed.lock:
            return name in self._expected or self._oldest(name) is not None

    def request(self, name: str) -> Request | None:
        """Return the request of a name; ``None`` if it has ended or is not known."""
        with self._changed.lock:
            return self._expected.get(name)

    def put(self, collector: Collector, index: int, *, is_last: bool) -> None:
        """Add the present state of a sequence; called on the decode thread, never waits."""
        name, num_tokens = collector.names[index], len(collector.sequences[index].token_ids)
        unread = _Unread(collector, index, num_tokens, is_last)
        with self._changed.lock:
            self._tidy()
            handler = self._handlers.get(name)
            if handler is None or not handler.ring(unread):
                number = next(self._numbers)
                self._unread[number] = unread
                self._of_name.setdefault(name, deque()).append(number)
            if is_last:
                self._handlers.pop(name, None)
                self.num_ended += 1
                self._expected.pop(name, None)
            self._changed.notify_all()

    def hand_over(
        self, name: str, function: Callable[[GenerationOutput], object], bell: LoopBell
    ) -> None:
        """Call a function with the results of a sequence, those not yet read first.

        Args:
            name: Name of the sequence, which may come later. The function stays until its last
                result, or until another function takes its place.
            function: Called in the loop of the bell. If it raises, the log says so.
            bell: Of the loop. Once this has ended, results are kept until they are read.
        """
        handler = _Handler(function, bell)
        with self._changed.lock:
            self._handlers[name] = handler
            while (unread := self._pop(name)) is not None:
                handler.ring(unread)
                if unread.is_last:
                    del self._handlers[name]

    def wake(self) -> None:
        """Let all waiting threads check again whether there is anything to wait for."""
        with self._changed.lock:
            self._tidy()
            self._changed.notify_all()

    def take(
        self, name: str | None, timeout: float | None, is_running: Callable[[], bool]
    ) -> GenerationOutput | None:
        """Take the oldest unread result; wait if there is none.

        Args:
            name: Name of a sequence; ``None`` for any.
            timeout: Most seconds to wait; ``None`` for no limit.
            is_running: Returns whether new results may still come.

        Returns:
            ``None`` at the timeout, or if no result will come: the sequence has ended or is not
            known, or nothing runs.
        """

        def find() -> tuple[int, GenerationOutput] | bool:
            """The number and the result; ``True`` if none will come, ``False`` to wait."""
            self._tidy()
            number = self._oldest(name)
            if number is not None:
                return number, self._unread[number].read()
            return not is_running() or (name is not None and name not in self._expected)

        while True:
            found = self._changed.wait_for(find, timeout)
            if isinstance(found, bool):
                return None
            # No call comes between these, so Ctrl-C loses no result; a thread that was quicker
            # does: then the next one is looked for.
            try:
                del self._unread[found[0]]
                self._taken += (found[1].request_id,)
                return found[1]
            except KeyError:
                continue

    def _tidy(self) -> None:
        while self._taken:
            self._oldest(self._taken.pop())

    def _oldest(self, name: str | None) -> int | None:
        """The number of the oldest unread result; those that were read are forgotten."""
        if name is None:
            return next(iter(self._unread), None)
        numbers = self._of_name.get(name)
        while numbers and numbers[0] not in self._unread:
            numbers.popleft()
        if numbers:
            return numbers[0]
        self._of_name.pop(name, None)
        return None

    def _pop(self, name: str) -> _Unread | None:
        number = self._oldest(name)
        return None if number is None else self._unread.pop(number)
