"""The door of the engine: how many requests may wait, and when a refused one should come again.

It is asked on the event loops, before a prompt is even tokenized, and told on the decode thread
when a request starts and ends. It knows no request, only places, and whose they are.

A full queue lets a client in all the same that has less than its even share of it. So nobody can
fill it for others, and nobody who waits is sent away for them: n clients have at most
1 + 1/2 + ... + 1/n times the places of one.

A place counts for as long as its seat exists. So one that was not given back, as Ctrl-C came just
before, comes back with the request.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING
from weakref import ref

from asyncgen.errors import OverloadedError
from asyncgen.runtime.exact_values import exact

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

    __slots__ = ("__weakref__", "_admission", "_is_running", "client", "started_at")

    def __init__(self, admission: Admission, client: object = None) -> None:
        """Stand before the door; see :meth:`enter`.

        Args:
            admission: The door.
            client: The parameter of that name, not checked yet; what is no text is refused when
                the parameters are, and counts as not given here.
        """
        self.client: str = exact(client) if isinstance(client, str) else ""
        self.started_at: float | None = None
        self._admission = admission
        self._is_running = False

    def enter(self) -> None:
        """Begin to wait.

        Raises:
            OverloadedError: As many wait as may.
        """
        self._admission._let_in(self)

    def started(self) -> None:
        """Note that the request runs; a second call does nothing."""
        admission = self._admission
        with admission._lock:
            waiting = admission._waiting.get(self.client, set())
            if ref(self) in waiting:
                admission._running.add(ref(self, admission._running.discard))
                self._is_running = True
                self.started_at = admission._clock()
                waiting.discard(ref(self))

    def left(self) -> None:
        """Note that the request has ended, or never came; a second call does nothing."""
        admission = self._admission
        with admission._lock:
            was_running, self._is_running = self._is_running, False
            if was_running:
                admission._ends.append(admission._clock())
            admission._running.discard(ref(self))
            if self.client in admission._waiting:
                admission._waiting[self.client].discard(ref(self))


class Admission:
    """Counts requests that wait and run, and refuses those beyond the limit.

    Attributes:
        is_blocked: Whether requests wait though there are rows left: memory is what is short.
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
        # Of each client. Code of C drops an entry with its seat, at any time.
        self._waiting: dict[str, set[ref[Seat]]] = {}
        self._running: set[ref[Seat]] = set()
        self._ends: deque[float] = deque(maxlen=_MEASURED)

    @property
    def num_waiting(self) -> int:
        """Requests that were let in and have not started."""
        return sum(map(len, list(self._waiting.values())))

    @property
    def num_running(self) -> int:
        """Requests that have started and not ended."""
        return len(self._running)

    def _let_in(self, seat: Seat) -> None:
        """Let a request in, or refuse it."""
        with self._lock:
            self._waiting = {client: seats for client, seats in self._waiting.items() if seats}
            seats = self._waiting.setdefault(seat.client, set())
            most = self._max_queue_size
            if most is not None:
                free = 0 if self.is_blocked else max(self._max_running - self.num_running, 0)
                num_waiting, share = self.num_waiting, most // len(self._waiting)
                if num_waiting >= most + free and len(seats) >= share:
                    raise OverloadedError(
                        f"{num_waiting} requests wait, and `max_queue_size` is {most}; "
                        "try again later",
                        self.retry_after(),
                    )
            seats.add(ref(seat, seats.discard))

    def retry_after(self) -> float:
        """Seconds in which, at the rate of late, one request ends."""
        with self._lock:
            if not self._ends:
                return _UNKNOWN_SECONDS
            # Until now and not until the last end: a rate that has dried up is no rate.
            seconds = (self._clock() - self._ends[0]) / len(self._ends)
        return min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)
