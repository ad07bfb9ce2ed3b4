"""Share the time of each turn of the event loop among connections that send much.

All that a socket has received is parsed in Python, and 64 KiB may hold ten thousand frames, or as
many chunks of a body. So a server parses a slice of one connection after the other, for a few
milliseconds a turn; a connection whose data waits is not read from the socket. Knows no protocol.

Waiting connections are served in the order of a `FairQueue`: who sends little is next at once,
however many send much.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Protocol
from weakref import WeakKeyDictionary

from asyncgen_apps.serving.fair_queue import FairQueue
from asyncgen_apps.serving.time_slices import short_turns

TURN_SECONDS = 0.004
"""Time that all connections of a loop may parse in one of its turns."""

LONG_TURN = 0.02
"""Processor time of a turn behind which less is parsed in the next one: what is parsed starts work
whose time is not known before."""

_LEAST_REST, _MOST_REST = 0.002, 0.1
"""Shortest and longest rest in seconds; uvloop has timers of whole milliseconds."""

_SHORT_SECONDS = 1.0
"""Seconds without a turn after which the interpreter changes hands as seldom as usual."""

_LEAST_SECONDS = TURN_SECONDS / 32
"""Time for parsing while all turns are long: one slice."""

_FAST = 0.0001
"""Seconds of a slice behind which the next one may be longer."""


class Reader(Protocol):
    """A connection as the budget sees it.

    Attributes:
        least_slice: Bytes that are parsed at once, whatever they hold.
        most_slice: Bytes that are parsed at once where the slice before took no time.
        most_unread: Bytes behind which the socket is not read while the connection takes nothing.
        peer: Address of the other end.
    """

    least_slice: int
    most_slice: int
    most_unread: int
    peer: str

    @property
    def may_feed(self) -> bool:
        """True if it can take more: its own output is read, its messages are taken.

        When it can again, it calls `ReadBudget.resume`.
        """

    def cut(self, data: bytes | bytearray, most: int, /) -> int:
        """Return the length of the part at the start of the data that may be parsed at once."""

    def feed(self, data: bytes, /) -> None:
        """Parse some bytes."""

    def hold(self) -> None:
        """Stop reading from the socket."""

    def release(self) -> None:
        """Read from the socket again."""

    def abort(self) -> None:
        """End the connection at once."""


@dataclass(slots=True)
class _Unread:
    """Data of a connection that waits.

    Attributes:
        data: The bytes.
        size: Length of the next slice.
        is_queued: True if the connection is in the queue.
        is_held: True if its socket is not read.
    """

    data: bytearray
    size: int
    is_queued: bool = False
    is_held: bool = False


class ReadBudget:
    """The budget of an event loop: its connections hand over what they have received."""

    def __init__(self) -> None:
        """Begin without connections."""
        self._queue: FairQueue[Reader] = FairQueue()
        self._unread: dict[Reader, _Unread] = {}
        self._spent = 0.0
        self._renewal = 0.0
        self._allowance = TURN_SECONDS
        self._turn_began = 0.0  # in processor time of the thread
        self._began, self._began_at = 0.0, 0.0  # behind the last rest: that time, and the clock's
        self._begins = True
        self._is_scheduled = False
        self._is_short = False

    def take(self, connection: Reader, data: bytes) -> None:
        """Parse data of a connection, now if it is little, else in slices.

        Args:
            connection: Connection that received it.
            data: The bytes.
        """
        waiting = self._unread.get(connection)
        if waiting is not None:
            waiting.data += data
            _set_hold(connection, waiting)
            return
        now = perf_counter()
        if now > self._renewal:
            # By the clock: a callback in each turn would cost a small message a tenth of its time.
            self._renew(now)
        size = connection.least_slice
        if (
            len(data) <= size
            and self._spent < self._allowance
            and connection.may_feed
            and connection.cut(data, size) == len(data)
        ):
            self._feed(connection, data)
            return
        self._unread[connection] = waiting = _Unread(bytearray(data), size)
        self.resume(connection)
        _set_hold(connection, waiting)

    def resume(self, connection: Reader) -> None:
        """Go on with what a connection has not parsed yet, because it can take more."""
        waiting = self._unread.get(connection)
        if waiting is not None and not waiting.is_queued and connection.may_feed:
            waiting.is_queued = True
            self._queue.put(connection, connection.peer)
            _set_hold(connection, waiting)
            self._schedule()

    def forget(self, connection: Reader) -> bytes:
        """Drop a connection that is closed; return what it has not parsed."""
        self._queue.forget(connection, connection.peer)
        waiting = self._unread.pop(connection, None)
        return b"" if waiting is None else bytes(waiting.data)

    def _schedule(self) -> None:
        """Call `_turn`, after a rest for as long as the loop worked since the rest before.

        What is parsed has to be answered, and the threads that decode need the interpreter too.
        """
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        if not self._is_short:
            self._is_short = True
            turns = ExitStack()
            turns.enter_context(short_turns())
            loop.call_later(_SHORT_SECONDS, self._look, loop, turns)
        worked, passed = thread_time() - self._began, perf_counter() - self._began_at
        if passed > _SHORT_SECONDS:  # nothing was parsed for a while
            worked = passed = 0.0
            self._turn_began = thread_time()
        rest = min(2 * max(worked, self._spent) - passed, _MOST_REST)
        self._begins = rest >= _LEAST_REST or not 0.0 < passed < _MOST_REST
        if rest >= _LEAST_REST:
            loop.call_later(rest, self._turn)
        else:
            loop.call_soon(self._turn)

    def _look(self, loop: asyncio.AbstractEventLoop, turns: ExitStack) -> None:
        """Let the interpreter change hands as usual once no turn has come for a while."""
        if self._is_scheduled or perf_counter() - self._began_at < _SHORT_SECONDS:
            loop.call_later(_SHORT_SECONDS, self._look, loop, turns)
        else:
            self._is_short = False
            turns.close()

    def _turn(self) -> None:
        """Parse slices, one connection after the other, until the time of this turn is over."""
        began = thread_time()
        scale = 0.5 if began - self._turn_began > LONG_TURN else 2.0
        self._turn_began = began
        if self._begins:
            self._began, self._began_at = began, perf_counter()
        self._allowance = min(max(self._allowance * scale, _LEAST_SECONDS), TURN_SECONDS)
        self._renew(perf_counter())
        while self._queue and self._spent < self._allowance:
            connection = self._queue.take()
            waiting = self._unread.get(connection)
            if waiting is not None and connection.may_feed:
                self._feed_slice(connection, waiting)
                continue
            self._queue.spend(connection, 0.0)
            if waiting is None:  # it was closed
                self._queue.forget(connection, connection.peer)
            else:
                waiting.is_queued = False
                _set_hold(connection, waiting)
        self._is_scheduled = False
        if self._queue:
            self._schedule()

    def _renew(self, now: float) -> None:
        self._renewal = now + 2 * TURN_SECONDS
        self._spent = 0.0

    def _feed_slice(self, connection: Reader, waiting: _Unread) -> None:
        size = connection.cut(waiting.data, waiting.size)
        data = bytes(memoryview(waiting.data)[:size])
        del waiting.data[:size]
        try:
            seconds = self._feed(connection, data)
        except Exception as error:  # must not stop the turns of the other connections
            context = {"message": "a connection has failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            self._queue.spend(connection, 0.0)
            connection.abort()
            return
        self._queue.spend(connection, seconds)
        if self._unread.get(connection) is not waiting:  # it was closed
            self._queue.forget(connection, connection.peer)
            return
        waiting.is_queued = False  # not before: what is parsed may call `resume`
        is_fast = seconds < _FAST
        waiting.size = (
            min(2 * waiting.size, connection.most_slice) if is_fast else connection.least_slice
        )
        if waiting.data:
            self.resume(connection)
        else:
            del self._unread[connection]
        _set_hold(connection, waiting)

    def _feed(self, connection: Reader, data: bytes) -> float:
        """Parse bytes; return the seconds that it took, which count for this turn."""
        start = perf_counter()
        connection.feed(data)
        seconds = perf_counter() - start
        self._spent += seconds
        return seconds


def _set_hold(connection: Reader, waiting: _Unread) -> None:
    """Read from the socket of a connection only while there is room for what it sends."""
    is_full = bool(waiting.data) and len(waiting.data) >= connection.most_unread
    if waiting.is_held != (waiting.is_queued or is_full):
        waiting.is_held = not waiting.is_held
        (connection.hold if waiting.is_held else connection.release)()


_budgets: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBudget] = WeakKeyDictionary()


def running_budget() -> ReadBudget:
    """Return the budget of the running event loop, which all servers on it share."""
    loop = asyncio.get_running_loop()
    budget = _budgets.get(loop)
    if budget is None:
        budget = _budgets[loop] = ReadBudget()
    return budget
