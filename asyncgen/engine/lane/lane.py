"""Requests that cannot share a step: each is a run of its own, and they take turns.

`TurnScheduler` decides whose turn it is. Requests wait in order of priority, then arrival. Up to
``max_running`` run at a time, and the running ones take turns round-robin. A newcomer goes first,
but never two in a row while others run, so that no stream waits longer than two turns of each
other, however many come and go.

A run may grow to its longest without asking again: what its keys and values can take is reserved
from the pages of the shared batch before its first turn, and a request whose room is not there yet
waits. What fails, fails alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from asyncgen.engine.requests.request import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.scheduling.pages import PagePool, Reservation


T = TypeVar("T")
"""A request, or whatever stands for one."""


class TurnScheduler(Generic[T]):
    """Waiting and running requests, and the order of turns."""

    def __init__(self, max_running: int) -> None:
        """Start empty.

        Args:
            max_running: Most requests that run at a time, at least 1.
        """
        self.max_running = max_running
        self._waiting: list[tuple[int, int, T]] = []
        self._running: deque[T] = deque()
        self._arrivals = 0
        self._newcomer: T | None = None  # in front, before its first turn
        self._favoured: T | None = None  # had the last turn, and it was its first

    def add(self, item: T, priority: int = 0) -> None:
        """Queue a request; among equals of ``priority`` (higher goes first) the oldest is next."""
        heapq.heappush(self._waiting, (-priority, self._arrivals, item))
        self._arrivals += 1

    def admit(self) -> T | None:
        """Move the next waiting request to the front of the running ones, if it may go there.

        It may if there is room, and if another request had a turn since the last one was moved.
        """
        if not self._waiting or len(self._running) >= self.max_running:
            return None
        favoured = self._favoured
        if favoured is not None and any(item is not favoured for item in self._running):
            return None
        self._newcomer = heapq.heappop(self._waiting)[2]
        self._running.appendleft(self._newcomer)
        return self._newcomer

    def next_turn(self) -> T | None:
        """The running request whose turn it is; it moves to the end of the round."""
        if not self._running:
            return None
        item = self._running.popleft()
        self._running.append(item)
        self._favoured = item if item is self._newcomer else None
        self._newcomer = None
        return item

    def remove(self, item: T) -> bool:
        """Forget a request, wherever it is.

        Returns:
            Whether it was here.
        """
        if item in self._running:
            self._running.remove(item)
            if not self._running:
                self._favoured = None
            return True
        before = len(self._waiting)
        self._waiting = [entry for entry in self._waiting if entry[2] is not item]
        heapq.heapify(self._waiting)
        return len(self._waiting) < before

    def waiting(self) -> Iterator[T]:
        """The queued requests, next first."""
        return (entry[2] for entry in sorted(self._waiting, key=lambda entry: entry[:2]))

    @property
    def num_waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """How many requests run."""
        return len(self._running)

    def __len__(self) -> int:
        """All requests here."""
        return len(self._waiting) + len(self._running)

    def clear(self) -> list[T]:
        """Forget all requests and return them, running first."""
        items = [*self._running, *self.waiting()]
        self._running.clear()
        self._waiting.clear()
        self._newcomer = self._favoured = None
        return items


class LaneRun(Protocol):
    """A request in progress (see :mod:`asyncgen.engine.lane.strategy_run`)."""

    def turn(self) -> bool:
        """Advance by one step; ``False`` when the request has ended."""

    def end(self, reason: str) -> None:
        """End now, keeping what was generated; ``reason`` is the finish reason."""


class SideLane:
    """Requests, their turns, their memory and their ends.

    Attributes:
        requests: Those that have not ended.
    """

    def __init__(
        self,
        start: Callable[[Request], LaneRun],
        *,
        max_running: int,
        pool: PagePool | None = None,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Start without requests.

        Args:
            start: Lays out a request for decoding (the runner's constructor).
            max_running: Most requests that run at a time.
            pool: Where memory is reserved; ``None`` where it is not planned.
            metrics: Hears of requests that fail.
        """
        self.requests: dict[Request, None] = {}
        self._start = start
        self._pool = pool
        self._metrics = metrics
        self._scheduler: TurnScheduler[Request] = TurnScheduler(max_running)
        self._runs: dict[Request, LaneRun] = {}
        self._reserved: dict[Request, Reservation] = {}

    @property
    def num_running(self) -> int:
        """Requests that take turns."""
        return self._scheduler.num_running

    @property
    def num_pages_wanted(self) -> int:
        """Pages that the next request waits for; 0 if it waits for nothing or for a turn."""
        scheduler, pool = self._scheduler, self._pool
        is_full = scheduler.num_running >= scheduler.max_running
        if pool is None or is_full or not scheduler.num_waiting:
            return 0
        wanted = next(iter(scheduler.waiting())).num_pages
        return wanted if wanted > pool.num_available else 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.requests[request] = None
        self._scheduler.add(request, request.params.priority)

    def abort(self, request: Request, reason: str = "cancelled") -> bool:
        """End a request wherever it is; return whether it was here."""
        if not self._scheduler.remove(request):
            return False
        self._end(request, reason)
        return True

    def abort_all(self, reason: str) -> None:
        """End every request."""
        for request in self._scheduler.clear():
            self._end(request, reason)

    def fail_all(self, error: BaseException) -> None:
        """Tell every request that the engine is dead."""
        for request in self._scheduler.clear():
            self._forget(request)
            fail(request, error, self._metrics)

    def step(self) -> bool:
        """Give one request one turn; ``False`` if there is none that can run."""
        self._admit()
        request = self._scheduler.next_turn()
        if request is None:
            return False
        try:
            goes_on = self._run_of(request).turn()
        except Exception as error:
            # This request's own failure: a processor that raised, a row of NaN.
            fail(request, error, self._metrics)
            goes_on = False
        if not goes_on:
            self._scheduler.remove(request)
            self._forget(request)
        return True

    def _admit(self) -> None:
        """Let the next request run if its memory is there; no other one overtakes it."""
        if self.num_pages_wanted:
            return
        request = self._scheduler.admit()
        if request is not None and self._pool is not None:
            self._reserved[request] = self._pool.reserve(request.num_pages)

    def _end(self, request: Request, reason: str) -> None:
        """Tell a request that is off the turns already why it ended."""
        try:
            self._run_of(request).end(reason)
        except Exception as error:
            # A tokenizer that raised on the rest of the text.
            fail(request, error, self._metrics)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        del self.requests[request]
        self._runs.pop(request, None)
        reserved = self._reserved.pop(request, None)
        if reserved is not None:
            reserved.release()

    def _run_of(self, request: Request) -> LaneRun:
        """The run of a request, made at its first turn."""
        run = self._runs.get(request)
        if run is None:
            run = self._runs[request] = self._start(request)
        return run
