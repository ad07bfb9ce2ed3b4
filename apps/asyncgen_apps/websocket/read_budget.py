"""Share the time of each turn of the event loop among connections that send much.

All that a socket has received is parsed in Python, and 64 KiB may hold ten thousand frames. So a
server parses a slice of one connection after the other, for a few milliseconds a turn; a
connection whose data waits is not read from the socket. Knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Protocol

TURN_SECONDS = 0.004
"""Time that all connections of a server may parse in a turn of the loop."""

LEAST_SLICE, MOST_SLICE = 512, 4096
"""Bytes that are parsed at once. A slice may hold a frame in every six bytes."""

_FAST = 0.0001
"""Seconds of a slice behind which the next one may be longer."""


class Reader(Protocol):
    """A connection as the budget sees it."""

    @property
    def may_feed(self) -> bool:
        """True if it can take more: its own output is read, its messages are taken."""

    def feed(self, data: bytes, /) -> None:
        """Parse some bytes."""

    def hold(self) -> None:
        """Stop reading from the socket."""

    def release(self) -> None:
        """Read from the socket again."""


class ReadBudget:
    """The budget of a server: its connections hand over what they have received."""

    def __init__(self) -> None:
        """Begin without connections."""
        self._waiting: deque[Reader] = deque()
        self._unread: dict[Reader, bytearray] = {}
        self._slices: dict[Reader, int] = {}
        self._spent = 0.0
        self._renewal = 0.0
        self._is_scheduled = False

    def take(self, connection: Reader, data: bytes) -> None:
        """Parse data of a connection, now if it is little, else in slices.

        Args:
            connection: Connection that received it.
            data: The bytes.
        """
        waiting = self._unread.get(connection)
        if waiting is not None:
            waiting += data
            return
        now = perf_counter()
        if now > self._renewal:
            # By the clock: a callback in each turn would cost a small message a tenth of its time.
            self._renew(now)
        if len(data) <= LEAST_SLICE and self._spent < TURN_SECONDS and connection.may_feed:
            self._feed(connection, data)
            return
        self._unread[connection] = bytearray(data)
        self._slices[connection] = LEAST_SLICE
        connection.hold()
        self.resume(connection)

    def resume(self, connection: Reader) -> None:
        """Go on with what a connection has not parsed yet, because it can take more."""
        if connection in self._unread and connection not in self._waiting:
            self._waiting.append(connection)
            self._schedule()

    def forget(self, connection: Reader) -> None:
        """Drop what a closed connection has not parsed."""
        if self._unread.pop(connection, None) is not None:
            del self._slices[connection]

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Parse slices, one connection after the other, until the time of this turn is over."""
        self._is_scheduled = False
        self._renew(perf_counter())
        while self._waiting and self._spent < TURN_SECONDS:
            connection = self._waiting.popleft()
            if connection in self._unread and connection.may_feed:
                self._feed_slice(connection)
        if self._waiting:
            self._schedule()

    def _renew(self, now: float) -> None:
        self._renewal = now + 2 * TURN_SECONDS
        self._spent = 0.0

    def _feed_slice(self, connection: Reader) -> None:
        unread, size = self._unread[connection], self._slices[connection]
        data = bytes(unread[:size])
        del unread[:size]
        seconds = self._feed(connection, data)
        if connection not in self._unread:
            return  # it was closed
        self._slices[connection] = min(2 * size, MOST_SLICE) if seconds < _FAST else LEAST_SLICE
        if unread:
            self._waiting.append(connection)
        else:
            self.forget(connection)
            connection.release()

    def _feed(self, connection: Reader, data: bytes) -> float:
        """Parse bytes; return the seconds that it took, which count for this turn."""
        start = perf_counter()
        connection.feed(data)
        seconds = perf_counter() - start
        self._spent += seconds
        return seconds
