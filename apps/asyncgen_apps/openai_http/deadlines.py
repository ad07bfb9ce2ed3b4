"""Many connections that have the same time, and one timer for all of them.

As the time is the same, who came first is the first to be late: there is nothing to sort. Knows the
clock of an event loop; nothing of what the time is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class HasLoop(Protocol):
    """Hashable object that belongs to an event loop."""

    loop: asyncio.AbstractEventLoop


C = TypeVar("C", bound=HasLoop)


class Deadlines(Generic[C]):
    """Connections that all have the same time, in the order in which it is over."""

    def __init__(self, seconds: float, end: Callable[[C], None]) -> None:
        """Start without connections.

        Args:
            seconds: The time that each has.
            end: Called with each whose time is over.
        """
        self._seconds = seconds
        self._end = end
        self._waiting: dict[C, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: C) -> None:
        """Start the time of a connection, unless it has started."""
        if connection in self._waiting:
            return
        deadline = connection.loop.time() + self._seconds
        self._waiting[connection] = deadline
        if self._timer is None:
            self._timer = connection.loop.call_at(deadline, self._look, connection.loop)

    def discard(self, connection: C) -> None:
        """Stop the time of a connection."""
        self._waiting.pop(connection, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End those whose time is over, and come back for the next one."""
        self._timer = None
        # What came while the loop stood still was read before: loops look at the clock last.
        now = loop.time()
        try:
            while self._waiting and (first := next(iter(self._waiting.items())))[1] <= now:
                del self._waiting[first[0]]
                self._end(first[0])
        finally:  # an end that fails is its own affair
            if self._waiting and self._timer is None:
                deadline = next(iter(self._waiting.values()))
                self._timer = loop.call_at(deadline, self._look, loop)
