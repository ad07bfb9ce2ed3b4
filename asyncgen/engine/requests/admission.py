"""The door of the engine: how many requests may wait, and when a refused one should come again.

It is asked on the event loops, before a prompt is even tokenized, and told on the decode thread
when a request starts and ends. It knows no request, only places, and whose they are.

A full queue lets a client in all the same that has less than its even share of it. So nobody can
fill it for others, and nobody who waits is sent away for them: n clients have at most
1 + 1/2 + ... + 1/n times the places of one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from asyncgen.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable


_MEASURED = 64
"""Ends that the rate is measured over."""

_UNKNOWN_SECONDS = 1.0
"""What is said before any request has ended."""

_LEAST_SECONDS, _MOST_SECONDS = 0.05, 60.0


class Seat:
    """The place of one request, from the door to its end. Any thread may say where it is.

    Attributes:
        client: Whom it belongs to.
        started_at: Clock of the admission when the request started, in seconds; ``None`` before.
    """

    __slots__ = ("_admission", "_stage", "client", "started_at")

    def __init__(self, admission: Admission, client: str) -> None:
        """Begin to wait; made by :meth:`Admission.enter`."""
        self.client = client
        self.started_at: float | None = None
        self._admission = admission
        self._stage = "waiting"

    def started(self) -> None:
        """Note that the request runs; a second call does nothing."""
        admission = self._admission
        with admission._lock:
            if self._stage == "waiting":
                self._stage = "running"
                admission._waiting -= Counter((self.client,))
                admission.num_waiting -= 1
                admission.num_running += 1
                self.started_at = admission._clock()

    def left(self) -> None:
        """Note that the request has ended, or never came; a second call does nothing."""
        admission = self._admission
        with admission._lock:
            stage, self._stage = self._stage, "left"
            if stage == "waiting":
                admission._waiting -= Counter((self.client,))
                admission.num_waiting -= 1
            elif stage == "running":
                admission.num_running -= 1
                admission._ends.append(admission._clock())


class Admission:
    """Counts requests that wait and run, and refuses those beyond the limit.

    Attributes:
        is_blocked: Whether requests wait though there are rows left: memory is what is short.
        num_waiting: Requests that were let in and have not started.
        num_running: Requests that have started and not ended.
    """

    def __init__(
        self,
        *,
        max_running: int,
        max_queue_size: int | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start empty.

        Args:
            max_running: Rows of a step; a request that finds one free does not wait.
            max_queue_size: Most requests of one client that wait, and of all together but for
                those below their shares; at least 1; ``None`` for no limit.
            clock: Monotonic seconds.
        """
        self.is_blocked = False
        self._max_running = max_running
        self._max_queue_size = max_queue_size
        self._clock = clock
        self._lock = threading.RLock()  # a finalizer may give a place back inside of it
        self.num_waiting = self.num_running = 0
        self._waiting: Counter[str] = Counter()
        self._ends: deque[float] = deque(maxlen=_MEASURED)

    def enter(self, client: object = None) -> Seat:
        """Let a request in, or refuse it.

        Args:
            client: The parameter of that name, not checked yet; what is no text is refused when
                the parameters are, and counts as not given here.

        Raises:
            OverloadedError: As many wait as may.
        """
        client = client if isinstance(client, str) else ""
        with self._lock:
            most = self._max_queue_size
            if most is not None:
                free = 0 if self.is_blocked else max(self._max_running - self.num_running, 0)
                share = most // len({*self._waiting, client})
                if self.num_waiting >= most + free and self._waiting[client] >= share:
                    raise OverloadedError(
                        f"{self.num_waiting} requests wait, and `max_queue_size` is {most}; "
                        "try again later",
                        self.retry_after(),
                    )
            self.num_waiting += 1
            self._waiting[client] += 1
        return Seat(self, client)

    def retry_after(self) -> float:
        """Seconds in which, at the rate of late, one request ends."""
        with self._lock:
            if not self._ends:
                return _UNKNOWN_SECONDS
            # Until now and not until the last end: a rate that has dried up is no rate.
            seconds = (self._clock() - self._ends[0]) / len(self._ends)
        return min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)
