"""Decides whose turn it is. Plain Python over requests: no torch, no clock, no thread.

Requests wait in order of priority, then arrival. Up to ``max_running`` run at a time, and the
running ones take turns round-robin. A newcomer goes first, but never two in a row while others run,
so that no stream waits longer than two turns of each other, however many come and go.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TurnScheduler"]

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
