"""Send what the connections of a server have to say, a few bytes in each turn of the event loop."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from asyncgen_apps.serving.time_slices import BYTES_OF_A_TURN, short_turns

if TYPE_CHECKING:
    import asyncio


FLUSH_BATCH = 8
"""Connections with one stream that are flushed together; with more the first would wait long."""


class Sender(Protocol):
    """A connection as the queue sees it.

    Attributes:
        loop: Its event loop.
    """

    loop: asyncio.AbstractEventLoop

    def flush(self) -> None:
        """Send what waits, as far as the queue has room."""

    def abort(self) -> None:
        """End the connection at once."""


class FlushQueue:
    """Queue of the connections of a server that have something to send.

    Those with one stream are flushed a few at a time: such a connection has nothing to gather, so
    it need not wait for the end of the turn. Flushing each one alone would cost a third more time:
    other code runs in between, and the receivers fall asleep.

    All together send `BYTES_OF_A_TURN` in one turn of the loop. Those that have more wait, and then
    leave half of the time to others.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self._waiting: list[Sender] = []
        self._later: deque[Sender] = deque()
        self._spent = 0
        self._seconds = 0.0  # that the last turn of those that wait took
        self._is_resting = False
        self._short = ExitStack()

    @property
    def allowance(self) -> int:
        """Bytes that may still be sent in this turn."""
        return BYTES_OF_A_TURN - self._spent

    def spend(self, num_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count what was sent in this turn."""
        if not self._spent:
            loop.call_soon(self._begin_turn, loop)
        self._spent += max(1, num_bytes)

    def defer(self, connection: Sender) -> None:
        """Flush a connection in a later turn; something was sent in this one."""
        if not self._later and not self._is_resting:
            self._short.enter_context(short_turns())
        self._later.append(connection)

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._spent = 0
        if self._later and not self._is_resting:
            self._is_resting = True
            loop.call_later(self._seconds, self._go_on)

    def _go_on(self) -> None:
        """Flush connections that wait, the one that has waited longest first."""
        began = perf_counter()
        for _ in range(len(self._later)):
            if self._spent >= BYTES_OF_A_TURN:
                break
            self._flush_one(self._later.popleft())
        self._seconds = perf_counter() - began
        self._is_resting = False
        if not self._later:
            self._short.close()

    def add(self, connection: Sender) -> None:
        """Flush a connection soon, at the latest when this turn of the loop is over."""
        self._waiting.append(connection)
        if len(self._waiting) >= FLUSH_BATCH:
            self._flush()
        elif len(self._waiting) == 1:
            connection.loop.call_soon(self._flush)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            self._flush_one(connection)

    @staticmethod
    def _flush_one(connection: Sender) -> None:
        try:
            connection.flush()
        except Exception as error:  # must not stop the flush of the other connections
            context = {"message": "a flush has failed", "exception": error}
            connection.loop.call_exception_handler(context)
            connection.abort()
