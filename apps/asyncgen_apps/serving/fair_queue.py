"""Order those that wait by the time that they had, first their clients and then themselves.

Start-time fair queueing (Goyal et al., 1996) on two levels: each slice of work moves a client, and
its connection, back by the time that it took. So one that needs little is next at once, however
many need much, and however many connections they open. Knows no connection and no clock.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

_MANY = 1024
"""Members behind which those that have nothing to wait for are forgotten."""


class _Level(Generic[T]):
    """Members that wait, by the virtual time at which each may go on.

    Attributes:
        shares: That time of the members that had something.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, T]] = []
        self.shares: dict[T, float] = {}
        self._now = 0.0  # seconds that each member could have had
        self._start = 0.0  # of the member that was taken last
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, member: T) -> None:
        start = max(self._now, self.shares.get(member, 0.0))
        heapq.heappush(self._queue, (start, next(self._numbers), member))

    def take(self) -> T:
        self._start, _, member = heapq.heappop(self._queue)
        self._now = max(self._now, self._start)
        return member

    def spend(self, member: T, seconds: float) -> None:
        # New members, which all start at this time, do not stop it.
        self._now += seconds / (len(self._queue) + 1)
        self.shares[member] = self._start + seconds
        if len(self.shares) > _MANY:
            self.shares = {each: at for each, at in self.shares.items() if at > self._now}

    def forget(self, member: T) -> None:
        self.shares.pop(member, None)


class FairQueue(Generic[T]):
    """Queue of connections; each client gets the same time, whatever the number of its own."""

    def __init__(self) -> None:
        """Begin empty."""
        self._clients: _Level[str] = _Level()
        self._of: dict[str, _Level[T]] = {}
        self._waiting: set[str] = set()
        self._taken = ""

    def __bool__(self) -> bool:
        """Tell whether any connection waits."""
        return bool(self._waiting)

    def put(self, connection: T, client: str) -> None:
        """Have a connection wait; it must not wait yet.

        Args:
            connection: The connection.
            client: Name of its client, always the same for a connection.
        """
        self._of.setdefault(client, _Level()).put(connection)
        self._put(client)

    def take(self) -> T:
        """Return the next connection, which no longer waits; `spend` must follow."""
        self._taken = self._clients.take()
        self._waiting.discard(self._taken)
        return self._of[self._taken].take()

    def spend(self, connection: T, seconds: float) -> None:
        """Count the time of the connection that was taken, and let its client's others go on."""
        client, self._taken = self._taken, ""
        level = self._of[client]
        self._clients.spend(client, seconds)
        level.spend(connection, seconds)
        if level:
            self._put(client)

    def forget(self, connection: T, client: str) -> None:
        """Forget a connection that has ended; if it waits, `take` still returns it."""
        level = self._of.get(client)
        if level is not None:
            level.forget(connection)
            if not level and not level.shares and client != self._taken:
                del self._of[client]

    def _put(self, client: str) -> None:
        if client not in self._waiting:
            self._waiting.add(client)
            self._clients.put(client)
