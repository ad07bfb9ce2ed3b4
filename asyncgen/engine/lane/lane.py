"""Requests that cannot share a step: each is a run of its own, and they take turns.

`TurnScheduler` decides whose turn it is. Requests wait in order of priority, then arrival. Up to
``max_running`` run at a time, and the running ones take turns round-robin. A newcomer goes first,
but never two in a row while others run, so that no stream waits longer than two turns of each
other, however many come and go.

A run may grow to its longest without asking again: what its keys and values can take is reserved
from the pages of the shared batch before its first turn, and a request whose room is not there yet
waits. What fails, fails alone.

Clients share the turns evenly, each turn counting as many rows as it computes; the round robin is
among the requests of a client.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from asyncgen.engine.requests.prepare import num_rows
from asyncgen.engine.requests.request import fail
from asyncgen.runtime.request_failure import request_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.kv_cache.block_pool import BlockPool, Reservation
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request


T = TypeVar("T")
"""A request, or whatever stands for one."""

_MIN_STALE = 64


class TurnScheduler(Generic[T]):
    """Waiting and running requests, and the order of turns."""

    def __init__(self, max_running: int) -> None:
        """Start empty.

        Args:
            max_running: Most requests that run at a time, at least 1; a client that has none of
                them may have one more.
        """
        self.max_running = max_running
        self._entries: dict[T, _Entry[T]] = {}
        self._waiting: dict[str, list[_Entry[T]]] = {}  # of each client a heap
        # Clients who wait and have nothing that runs: what they had, and the place of their next.
        # One that is no longer so goes when it comes up, or when there are too many of them.
        self._idle: list[tuple[float, tuple[int, int], str]] = []
        self._running: deque[_Entry[T]] = deque()
        self._num_running: Counter[str] = Counter()
        self._arrivals = 0
        self._newcomer: _Entry[T] | None = None  # in front, before its first turn
        self._favoured: _Entry[T] | None = None  # had the last turn, and it was its first
        self._spent: dict[str, float] = {}  # of the clients that are here
        self._debts: dict[str, float] = {}  # of those that left and had more than somebody here

    def add(self, item: T, priority: int = 0, *, client: str = "", cost: int = 1) -> None:
        """Queue a request.

        Args:
            item: The request.
            priority: Higher goes first; among equals of a client the oldest is next.
            client: Whom it belongs to.
            cost: What a turn of it costs, in rows.
        """
        if client not in self._spent:
            # Who comes has had as much as the one that had least: nobody saves turns up, and who
            # comes back has had what it had.
            least = min(self._spent.values(), default=0.0)
            self._spent[client] = max(least, self._debts.pop(client, 0.0))
        entry = self._entries[item] = _Entry((-priority, self._arrivals), item, client, cost)
        heapq.heappush(self._waiting.setdefault(client, []), entry)
        self._arrivals += 1
        self._note_idle(client)

    def admit(self) -> T | None:
        """Move the next waiting request to the front of the running ones, if it may go there.

        It may if there is room, and if another request had a turn since the last one was moved.
        """
        entry = self._next_waiting()
        if entry is None:
            return None
        favoured = self._favoured
        if favoured is not None and any(one is not favoured for one in self._running):
            return None
        self._take(entry)
        self._newcomer = entry
        self._running.appendleft(entry)
        self._num_running[entry.client] += 1
        return entry.item

    def next_turn(self) -> T | None:
        """The running request whose turn it is; it moves to the end of the round."""
        if not self._running:
            return None
        entry = self._running[0]
        if len(self._spent) > 1:
            # Of each client the one that is in front; the first of those that have had as little.
            entry = min(self._running, key=lambda one: self._spent[one.client])
        self._running.remove(entry)
        self._running.append(entry)
        self._spent[entry.client] += entry.cost
        self._favoured = entry if entry is self._newcomer else None
        self._newcomer = None
        return entry.item

    def remove(self, item: T) -> bool:
        """Forget a request, wherever it is.

        Returns:
            Whether it was here.
        """
        here = self._entries.pop(item, None)
        if here is None:
            return False
        client = here.client
        if here in self._running:
            self._running.remove(here)
            self._num_running[client] -= 1
            if not self._running:
                self._favoured = None
        else:
            self._take(here)
        self._note_idle(client)
        if client not in self._waiting and not self._num_running[client]:
            del self._num_running[client]
            self._debts[client] = self._spent.pop(client)
            least = min(self._spent.values(), default=float("inf"))
            self._debts = {name: had for name, had in self._debts.items() if had > least}
        return True

    def next_waiting(self) -> T | None:
        """The request that runs next; ``None`` if none waits, or none has room."""
        entry = self._next_waiting()
        return None if entry is None else entry.item

    def _next_waiting(self) -> _Entry[T] | None:
        """The next of who has had least, of those who have fewest that run."""
        while self._idle:
            if self._idle[0] == self._idle_entry(self._idle[0][2]):
                return self._waiting[self._idle[0][2]][0]
            heapq.heappop(self._idle)
        if len(self._running) >= self.max_running:
            return None
        counts, spent = self._num_running, self._spent
        able = [self._waiting[client][0] for client in counts if client in self._waiting]
        return min(able, key=lambda one: (counts[one.client], spent[one.client], one), default=None)

    def _take(self, entry: _Entry[T]) -> None:
        """Take a request out of those that wait."""
        queue = self._waiting[entry.client]
        if entry is queue[0]:
            heapq.heappop(queue)
        else:
            queue.remove(entry)
            heapq.heapify(queue)
        if not queue:
            del self._waiting[entry.client]

    def _note_idle(self, client: str) -> None:
        """Note what a client had that waits and has nothing that runs."""
        entry = self._idle_entry(client)
        if entry is None:
            return
        heapq.heappush(self._idle, entry)
        if len(self._idle) > _MIN_STALE + 2 * len(self._waiting):
            self._idle = sorted(filter(None, map(self._idle_entry, self._waiting)))

    def _idle_entry(self, client: str) -> tuple[float, tuple[int, int], str] | None:
        """The entry of such a client as it is now; ``None`` if it is none."""
        if client not in self._waiting or self._num_running[client]:
            return None
        return self._spent[client], self._waiting[client][0].place, client

    def waiting(self) -> list[T]:
        """The queued requests by priority and arrival; a copy."""
        return [one.item for one in sorted(chain.from_iterable(self._waiting.values()))]

    @property
    def num_waiting(self) -> int:
        """How many requests wait."""
        return len(self._entries) - len(self._running)

    @property
    def num_running(self) -> int:
        """How many requests run."""
        return len(self._running)

    def __len__(self) -> int:
        """All requests here."""
        return len(self._entries)

    def clear(self) -> list[T]:
        """Forget all requests and return them, running first."""
        items = [*(one.item for one in self._running), *self.waiting()]
        for kept in (self._entries, self._running, self._num_running, self._waiting, self._idle):
            kept.clear()
        self._spent.clear()
        self._debts.clear()
        self._newcomer = self._favoured = None
        return items


@dataclass(slots=True, order=True)
class _Entry(Generic[T]):
    """A request among the others; compared by its place alone."""

    place: tuple[int, int]
    item: T = field(compare=False)
    client: str = field(compare=False)
    cost: int = field(compare=False)


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
        pool: BlockPool | None = None,
        may_reserve: Callable[[str], bool] | None = None,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Start without requests.

        Args:
            start: Lays out a request for decoding (the runner's constructor).
            max_running: Most requests that run at a time.
            pool: Where memory is reserved; ``None`` where it is not planned.
            may_reserve: Asked whether a client may have memory that is there; ``None``: it may.
            metrics: Hears of requests that fail.
        """
        self.requests: dict[Request, None] = {}
        self._start = start
        self._pool = pool
        self._may_reserve = may_reserve
        self._metrics = metrics
        self._scheduler: TurnScheduler[Request] = TurnScheduler(max_running)
        self._runs: dict[Request, LaneRun] = {}
        self._reserved: dict[Request, Reservation] = {}

    @property
    def num_running(self) -> int:
        """Requests that take turns."""
        return self._scheduler.num_running

    @property
    def pages_wanted(self) -> tuple[int, str]:
        """Pages that the next request waits for, and whose it is; 0 if it waits for none."""
        pool, request = self._pool, self._scheduler.next_waiting()
        if pool is None or request is None or request.num_pages <= pool.num_available:
            return 0, ""
        return request.num_pages, request.params.client

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.requests[request] = None
        params = request.params
        self._scheduler.add(request, params.priority, client=params.client, cost=num_rows(params))

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
        except BaseException as error:
            # This request's own failure: a processor that raised, a row of NaN.
            fail(request, request_failure(error), self._metrics)
            goes_on = False
        if not goes_on:
            self._scheduler.remove(request)
            self._forget(request)
        return True

    def _admit(self) -> None:
        """Let the next request run if its memory is there; no other one overtakes it."""
        if self.pages_wanted[0]:
            return
        head = self._scheduler.next_waiting()
        if head is not None and self._may_reserve is not None and head.num_pages:
            if not self._may_reserve(head.params.client):
                return
        request = self._scheduler.admit()
        if request is not None and self._pool is not None:
            pages, client = request.num_pages, request.params.client
            self._reserved[request] = self._pool.reserve(pages, client)

    def _end(self, request: Request, reason: str) -> None:
        """Tell a request that is off the turns already why it ended."""
        try:
            self._run_of(request).end(reason)
        except BaseException as error:
            # A tokenizer that raised on the rest of the text.
            fail(request, request_failure(error), self._metrics)
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
