"""Serve requests that cannot share a step: each runs alone, and they take turns.

`TurnScheduler` chooses the turn. Requests wait in order of priority, then arrival. Up to
``max_running`` run at a time, and the running ones take turns round-robin. A new request goes
first, but never two in a row while others run, so that no stream waits longer than two turns of
each other stream.

Before the first turn of a run, pages of the shared batch are reserved for the longest text that it
may reach, and it never asks again; until they are free, the request waits. A request that fails
fails alone.

Clients share the turns evenly, and a turn counts as many rows as it computes. The round robin is
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
from asyncgen.runtime.user_code import drawing_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.kv_cache.block_pool import BlockPool, Reservation
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.request import Request


T = TypeVar("T")
"""A request; tests use other objects."""

_MIN_STALE = 64


class TurnScheduler(Generic[T]):
    """Waiting and running requests, and the order of their turns."""

    def __init__(self, max_running: int) -> None:
        """Start empty.

        Args:
            max_running: Most requests that run at a time, at least 1; a client without a running
                request may run one more.
        """
        self.max_running = max_running
        self._entries: dict[T, _Entry[T]] = {}
        self._waiting: dict[str, list[_Entry[T]]] = {}  # of each client a heap
        # Heap of clients that wait and run nothing: rows that they had, and rank of their next
        # request. Outdated entries go when they come up, or when there are too many of them.
        self._idle: list[tuple[float, tuple[int, int], str]] = []
        self._running: deque[_Entry[T]] = deque()
        self._num_running: Counter[str] = Counter()
        self._arrivals = 0
        self._newcomer: _Entry[T] | None = None  # in front, before its first turn
        self._favoured: _Entry[T] | None = None  # had its first turn, and it was the last turn
        self._spent: dict[str, float] = {}  # of the clients that are here
        self._debts: dict[
            str, float
        ] = {}  # of clients that left and had more than one that is here

    def add(self, item: T, priority: int = 0, *, client: str = "", cost: int = 1) -> None:
        """Queue a request.

        Args:
            item: The request.
            priority: Higher goes first; among equals of a client the oldest is next.
            client: Client of the request.
            cost: Rows that a turn of it computes.
        """
        if client not in self._spent:
            # A new client begins with the least that any client had, so that nobody saves up
            # turns; a client that comes back keeps what it had.
            least = min(self._spent.values(), default=0.0)
            self._spent[client] = max(least, self._debts.pop(client, 0.0))
        entry = self._entries[item] = _Entry((-priority, self._arrivals), item, client, cost)
        heapq.heappush(self._waiting.setdefault(client, []), entry)
        self._arrivals += 1
        self._note_idle(client)

    def admit(self) -> T | None:
        """Move the next waiting request to the front of the running ones, if it may run.

        It may if fewer than ``max_running`` run, and if another request had a turn since the last
        one was moved.
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
        """Return the running request whose turn it is, and move it to the end of the round."""
        if not self._running:
            return None
        entry = self._running[0]
        if len(self._spent) > 1:
            # The first request of the client that had least; of equal clients the first request.
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
            True if it was here.
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
        """Return the request that runs next; ``None`` if none waits, or none may run."""
        entry = self._next_waiting()
        return None if entry is None else entry.item

    def _next_waiting(self) -> _Entry[T] | None:
        """Return the next request of the client that runs fewest, and of these had least."""
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
        """Remove a request from the waiting ones."""
        queue = self._waiting[entry.client]
        if entry is queue[0]:
            heapq.heappop(queue)
        else:
            queue.remove(entry)
            heapq.heapify(queue)
        if not queue:
            del self._waiting[entry.client]

    def _note_idle(self, client: str) -> None:
        """Add a client to the idle ones if it waits and runs nothing."""
        entry = self._idle_entry(client)
        if entry is None:
            return
        heapq.heappush(self._idle, entry)
        if len(self._idle) > _MIN_STALE + 2 * len(self._waiting):
            self._idle = sorted(filter(None, map(self._idle_entry, self._waiting)))

    def _idle_entry(self, client: str) -> tuple[float, tuple[int, int], str] | None:
        """Return the present entry of an idle client; ``None`` if it is not idle."""
        if client not in self._waiting or self._num_running[client]:
            return None
        return self._spent[client], self._waiting[client][0].rank, client

    def waiting(self) -> list[T]:
        """Return the waiting requests by priority and arrival; a copy."""
        return [one.item for one in sorted(chain.from_iterable(self._waiting.values()))]

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._entries) - len(self._running)

    @property
    def num_running(self) -> int:
        """Number of requests that run."""
        return len(self._running)

    def __len__(self) -> int:
        """Number of all requests."""
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
    """Request with its rank, by which alone entries are compared."""

    rank: tuple[int, int]
    item: T = field(compare=False)
    client: str = field(compare=False)
    cost: int = field(compare=False)


class LaneRun(Protocol):
    """Request in progress (see :mod:`asyncgen.engine.lane.strategy_run`)."""

    def turn(self) -> bool:
        """Advance by one step; ``False`` when the request has ended."""

    def end(self, reason: str) -> None:
        """End now, keeping what was generated; ``reason`` is the finish reason."""


class SideLane:
    """Requests that take turns, with their memory and their ends.

    Attributes:
        requests: Requests that have not ended.
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
            start: Makes the run of a request.
            max_running: Most requests that run at a time.
            pool: Pages to reserve; ``None`` where memory is not planned.
            may_reserve: Returns whether a client may reserve free pages; ``None`` for always.
            metrics: Records requests that fail.
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
        """Number of requests that take turns."""
        return self._scheduler.num_running

    @property
    def pages_wanted(self) -> tuple[int, str]:
        """Pages that the next request waits for, and its client; 0 if it waits for none."""
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
            with drawing_from(request.user_draws):
                goes_on = self._run_of(request).turn()
        except BaseException as error:
            # A processor of this request raised, or a row holds NaN.
            fail(request, request_failure(error), self._metrics)
            goes_on = False
        if not goes_on:
            self._scheduler.remove(request)
            self._forget(request)
        return True

    def _admit(self) -> None:
        """Let the next request run if its pages are free; no other request overtakes it."""
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
        """Write the end of a request that takes no more turns."""
        try:
            self._run_of(request).end(reason)
        except BaseException as error:
            # A tokenizer raised on the rest of the text.
            fail(request, request_failure(error), self._metrics)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        del self.requests[request]
        self._runs.pop(request, None)
        reserved = self._reserved.pop(request, None)
        if reserved is not None:
            reserved.release()

    def _run_of(self, request: Request) -> LaneRun:
        """Return the run of a request, made at its first turn."""
        run = self._runs.get(request)
        if run is None:
            run = self._runs[request] = self._start(request)
        return run
