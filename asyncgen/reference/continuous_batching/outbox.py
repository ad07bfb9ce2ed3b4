"""Where the results of synchronous readers wait: written by the decode thread, read by any other.

A reader takes the next result of all requests, or of one. Tokens that came one by one are put
together only when they are read, so that a long answer that is never read costs its tokens once.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncgen.engine.requests.request import clock
from asyncgen.engine.scheduling.state import GenerationOutput, RequestStatus
from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.request_failure import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.engine.requests.admission import Seat
    from asyncgen.engine.requests.request import Request
    from asyncgen.types import TokenEvent


_ERRORS = {
    "cancelled": "the request was cancelled",
    "aborted": "the manager was stopped before the request was done",
}
"""What is said of samples that ended before their time."""


@dataclass(slots=True, eq=False)
class _Sample:
    """What is known of one sample; grows on the decode thread."""

    name: str
    prompt_ids: list[int]
    created: float
    place: Seat | None
    timestamps: list[float] | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: float = -1.0
    error: str | None = None
    is_over: bool = False

    def output(self, num_tokens: int, *, is_last: bool) -> GenerationOutput:
        """The sample as it was after so many tokens."""
        begun = None if self.place is None else self.place.started_at
        status = RequestStatus.DECODING
        if is_last:
            status = RequestStatus.FINISHED if self.error is None else RequestStatus.FAILED
        return GenerationOutput(
            request_id=self.name,
            prompt_ids=list(self.prompt_ids),
            generated_tokens=self.tokens[:num_tokens],
            logprobs=self.logprobs[:num_tokens],
            error=self.error if is_last else None,
            status=status,
            created_time=self.created,
            lifespan=(-1.0 if begun is None else begun, self.ended if is_last else -1.0),
            timestamps=None if self.timestamps is None else self.timestamps[:num_tokens],
        )


@dataclass(frozen=True, slots=True)
class _Unread:
    """A result that was not taken yet."""

    sample: _Sample
    num_tokens: int
    is_last: bool


class Results:
    """Results of many requests in the order in which they came, by name as well.

    Attributes:
        num_ended: Samples that have ended so far.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.num_ended = 0
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._unread: dict[int, _Unread] = {}
        self._of_name: dict[str, deque[int]] = {}
        self._expected: dict[str, Request] = {}

    def expect(self, names: Sequence[str], request: Request) -> None:
        """Take names for the samples of a request that will be posted.

        Raises:
            InvalidRequestError: A name is in use: that request runs, or has unread results.
        """
        with self._changed:
            for name in names:
                if self.is_known(name):
                    raise InvalidRequestError(
                        "request_id", name, "in use; read the results of that request first"
                    )
            self._expected.update(dict.fromkeys(names, request))

    def forget(self, names: Sequence[str]) -> None:
        """Give names back whose request was not posted after all."""
        with self._changed:
            for name in names:
                self._expected.pop(name, None)
            self._changed.notify_all()

    def is_known(self, name: str) -> bool:
        """Whether a name is expected to have results, or has unread ones."""
        with self._changed:
            return name in self._expected or name in self._of_name

    def request(self, name: str) -> Request | None:
        """The request that a name stands for; ``None`` if it has ended or never was."""
        with self._changed:
            return self._expected.get(name)

    def put(self, sample: _Sample, *, is_last: bool) -> None:
        """Add the present state of a sample; called on the decode thread, never waits."""
        with self._changed:
            number = next(self._numbers)
            self._unread[number] = _Unread(sample, len(sample.tokens), is_last)
            self._of_name.setdefault(sample.name, deque()).append(number)
            if is_last:
                self.num_ended += 1
                self._expected.pop(sample.name, None)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let all waiting threads look again whether there is anything to wait for."""
        with self._changed:
            self._changed.notify_all()

    def take(
        self, name: str | None, timeout: float | None, is_running: Callable[[], bool]
    ) -> GenerationOutput | None:
        """Take the oldest unread result out, and wait for it if there is none.

        Args:
            name: Of this sample only; ``None`` for any.
            timeout: Most seconds to wait; ``None`` for no limit.
            is_running: Whether anybody is there who may still put results.

        Returns:
            ``None`` at the timeout, or where nothing will come: of one sample because it has ended
            or is not known; of any request: because none runs.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                unread = self._pop(name)
                if unread is not None:
                    return unread.sample.output(unread.num_tokens, is_last=unread.is_last)
                if not is_running() or (name is not None and name not in self._expected):
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)

    def _pop(self, name: str | None) -> _Unread | None:
        if name is None:
            number = next(iter(self._unread), None)
            if number is None:
                return None
            name = self._unread[number].sample.name
        numbers = self._of_name.get(name)
        if numbers is None:
            return None
        unread = self._unread.pop(numbers.popleft())
        if not numbers:
            del self._of_name[name]
        return unread


class Collector:
    """The sink of one request: sorts its events by sample."""

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
            results: Where results go.
            names: One for each sample.
            prompt_ids: The prompt.
            created: Clock of the engine when the request was made, in seconds.
            place: Knows when the request left the queue.
            streaming: Whether there is a result for each step, beside the last one.
            record_timestamps: Whether to note when each token came.
        """
        self._results = results
        self._streaming = streaming
        self._created = created
        self._samples = [
            _Sample(name, prompt_ids, created, place, [] if record_timestamps else None)
            for name in names
        ]

    def put_nowait(self, item: TokenEvent | BaseException, /) -> None:
        """Take in an event, or what ended the request."""
        if isinstance(item, BaseException):
            for sample in self._samples:
                self._end(sample, describe(item))
            return
        sample = self._samples[item.index]
        now = self._created + item.time
        sample.tokens += item.token_ids
        if item.logprobs is not None:
            sample.logprobs += [entry.logprob for entry in item.logprobs]
        if sample.timestamps is not None:
            sample.timestamps += [now] * len(item.token_ids)
        if item.finish_reason is not None:
            self._end(sample, _ERRORS.get(item.finish_reason), now)
        elif self._streaming and item.token_ids:
            self._results.put(sample, is_last=False)

    def _end(self, sample: _Sample, error: str | None, now: float | None = None) -> None:
        if sample.is_over:
            return
        sample.is_over, sample.error = True, error
        sample.ended = clock() if now is None else now
        self._results.put(sample, is_last=True)
