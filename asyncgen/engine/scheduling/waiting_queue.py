"""Requests that wait: for their turn, or for another one to compute a common beginning.

A rank never changes: it is the step of arrival, less a fixed number of steps for each level of
priority. So waiting counts as much as priority does, nothing has to be sorted again as time goes
by, and no request is overtaken for ever. Ranks order the requests of one client: whose turn it is
among clients is decided elsewhere.

A request stands aside while another one computes the pages of their common beginning; when these
are full, the pool has them. Knows keys of pages, not pages.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncgen.engine.scheduling.state import RequestState


_MIN_STALE = 64

_PATIENCE = 8
"""A request that computes nothing for so many steps is no longer waited for."""


class WaitingQueue:
    """Waiting requests of each client by rank; some stand aside until they are called back.

    Attributes:
        states: All of them, by id.
        aside: Those who stand aside, or did, by the key that they wait for.
        num_up: How many requests of each client do not stand aside.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.states: dict[str, RequestState] = {}
        # Entries of requests that left, or stand aside, go when they come up or grow too many.
        self._heaps: dict[str, list[tuple[tuple[int, int], int, RequestState]]] = {}
        self._pushes = itertools.count()
        self.aside: dict[bytes, list[RequestState]] = {}
        self.num_up: Counter[str] = Counter()
        self._standing: set[RequestState] = set()

    def __len__(self) -> int:
        """How many wait, those who stand aside included."""
        return len(self.states)

    def push(self, state: RequestState) -> None:
        """Queue a request whose rank is set."""
        self.states[state.request_id] = state
        self._enter(state)

    def remove(self, state: RequestState) -> None:
        """Let a request go, wherever it stands."""
        del self.states[state.request_id]
        if state in self._standing:
            self._standing.remove(state)
        else:
            self._leave(state.client)
        heap = self._heaps.get(state.client, [])
        most = _MIN_STALE + 2 * self.num_up[state.client]
        if not self.states:
            self._heaps.clear()
        elif len(heap) > most:
            heap[:] = [entry for entry in heap if self._is_up(entry[2])]
            heapq.heapify(heap)

    def head(self, client: str) -> RequestState | None:
        """The next request of a client; ``None`` if none of its requests is up."""
        heap = self._heaps.get(client, [])
        while heap:
            state = heap[0][2]
            if self._is_up(state):
                return state
            heapq.heappop(heap)
        self._heaps.pop(client, None)
        return None

    def in_turn(self, client: str = "") -> Iterator[RequestState]:
        """The waiting requests of a client, next first; it ends behind one that stays in its place.

        The caller removes each request or sets it aside; one that it leaves ends the iteration.
        """
        while (state := self.head(client)) is not None:
            yield state
            if self._is_up(state):
                return

    def ranked(self) -> list[RequestState]:
        """All waiting requests, next first, those who stand aside included; a copy."""
        return sorted(self.states.values(), key=lambda state: state.rank)

    def is_aside(self, state: RequestState) -> bool:
        """Whether a waiting request stands aside."""
        return state in self._standing

    def set_aside(self, state: RequestState, key: bytes) -> None:
        """Let others go before one in the queue until ``call_back`` is called with this key."""
        self._standing.add(state)
        self._leave(state.client)
        self.aside.setdefault(key, []).append(state)

    def call_back(self, key: bytes) -> list[RequestState]:
        """Put those who wait for a key back in their places.

        Returns:
            The requests; empty if none waits for it.
        """
        called = [state for state in self.aside.pop(key, ()) if state in self._standing]
        for state in called:
            self._standing.remove(state)
            self._enter(state)
        return called

    def _enter(self, state: RequestState) -> None:
        heap = self._heaps.setdefault(state.client, [])
        heapq.heappush(heap, (state.rank, next(self._pushes), state))
        self.num_up[state.client] += 1

    def _leave(self, client: str) -> None:
        self.num_up[client] -= 1
        if not self.num_up[client]:
            del self.num_up[client]

    def _is_up(self, state: RequestState) -> bool:
        return self.states.get(state.request_id) is state and state not in self._standing


class PrefixLeaders:
    """Running requests by the keys of the pages that they are about to fill."""

    def __init__(self, queue: WaitingQueue) -> None:
        """Start without leaders.

        Args:
            queue: Where those stand who wait for a leader.
        """
        self._queue = queue
        self._leaders: dict[bytes, RequestState] = {}

    def __len__(self) -> int:
        """How many pages are being computed for the first time."""
        return len(self._leaders)

    def lead(self, state: RequestState) -> None:
        """Note that a request computes its pages, from the first that is not published."""
        for key in state.block_hashes[state.num_published :]:
            self._leaders.setdefault(key, state)

    def settle(self, state: RequestState, key: bytes) -> None:
        """Note that a request has computed a page, or never will; who waited for it may go on."""
        if self._leaders.get(key) is state:
            del self._leaders[key]
            self._queue.call_back(key)

    def leave(self, state: RequestState) -> None:
        """Let others compute what a request was about to compute."""
        for key in state.block_hashes[state.num_published :]:
            self.settle(state, key)

    def awaited_key(self, keys: Sequence[bytes]) -> bytes | None:
        """What a request should wait for.

        Args:
            keys: Keys of the pages that it would have to compute.

        Returns:
            The last key of the run from the beginning that one leader is computing, if any.
        """
        leader = self._leaders.get(keys[0]) if keys else None
        awaited = None
        if leader is not None:
            for key in keys:
                if self._leaders.get(key) is not leader:
                    break
                awaited = key
        return awaited

    def who_computes(self, key: bytes) -> tuple[RequestState, int]:
        """The leader of an awaited page, and how many pages of its text end with that one."""
        leader = self._leaders[key]
        return leader, leader.block_hashes.index(key) + 1

    def recall_the_impatient(self, step: int) -> None:
        """Call requests back for good whose leader has computed nothing for some steps.

        Args:
            step: Number of the present step.
        """
        for key in list(self._queue.aside):
            if self._leaders[key].last_chunk < step - _PATIENCE:
                for state in self._queue.call_back(key):
                    state.waits_for_prefix = False

    def check_integrity(self, running: dict[str, RequestState]) -> None:
        """Prove that every leader runs and that every awaited key has one; for tests.

        Raises:
            AssertionError: It is not so.
        """
        assert all(running.get(state.request_id) is state for state in self._leaders.values())
        assert self._leaders.keys() >= self._queue.aside.keys(), "an awaited key has no leader"
