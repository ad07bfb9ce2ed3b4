"""Requests that wait, next first. Knows their ranks, not what they wait for.

A rank never changes: it is the step of arrival, less a fixed number of steps for each level of
priority. So waiting counts as much as priority does, nothing has to be sorted again as time goes
by, and nobody is overtaken for ever.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen.engine.scheduling.state import RequestState

__all__ = ["WaitingQueue"]

_MIN_STALE = 64


class WaitingQueue:
    """Waiting requests by rank; some stand aside until they are called back."""

    def __init__(self) -> None:
        """Start empty."""
        self.states: dict[str, RequestState] = {}
        # Entries of requests that left, or stand aside, go when they come up or grow too many.
        self._heap: list[tuple[tuple[int, int], int, RequestState]] = []
        self._pushes = itertools.count()
        self._aside: dict[bytes, list[RequestState]] = {}
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
        self._standing.discard(state)
        if len(self._heap) > _MIN_STALE + 2 * len(self.states):
            self._heap = [entry for entry in self._heap if self._is_up(entry[2])]
            heapq.heapify(self._heap)

    def in_turn(self) -> Iterator[RequestState]:
        """The waiting requests, next first; it ends behind one that stays in its place.

        Whoever iterates removes each request or sets it aside, or else nobody behind it may go.
        """
        while self._heap:
            state = self._heap[0][2]
            if not self._is_up(state):
                heapq.heappop(self._heap)
                continue
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
        self._aside.setdefault(key, []).append(state)

    def call_back(self, key: bytes) -> list[RequestState]:
        """Put those who wait for a key back in their places.

        Returns:
            Who they are; empty if nobody waits for it.
        """
        called = [state for state in self._aside.pop(key, ()) if state in self._standing]
        for state in called:
            self._standing.remove(state)
            self._enter(state)
        return called

    def awaited(self) -> list[bytes]:
        """The keys that somebody stands aside for, or did."""
        return list(self._aside)

    def _enter(self, state: RequestState) -> None:
        heapq.heappush(self._heap, (state.rank, next(self._pushes), state))

    def _is_up(self, state: RequestState) -> bool:
        return self.states.get(state.request_id) is state and state not in self._standing
