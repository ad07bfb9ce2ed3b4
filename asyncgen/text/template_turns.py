"""Let chat templates work one after another, in short turns with rests while others wait.

A step of the streams needs the interpreter dozens of times, and each time waits until another
thread releases it. A template may be a stranger's program that works for as long as it may, and
many may be rendered at once. So all of a process share one timetable: who has worked for a turn
sleeps until the place that it has taken in it, unless no thread waits and no other renders. There
is no lock that a Ctrl-C could leave behind.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN: Final = 0.0005
"""Seconds that a template works before it rests; a single call may take longer."""

_LONGEST_REST: Final = 0.05
"""Seconds, so that one call that took long keeps nobody else from working."""

_ALONE: Final = 1.5e-4
"""Seconds within which the interpreter comes back if no thread has it; a core sleeps half of it."""

_free_at = [0.0]
"""When the next turn may begin, by ``time.perf_counter``; nothing else is shared."""


class Turn:
    """The turns of one thread.

    Attributes:
        ends: When the next rest is due, by ``time.perf_counter``.
    """

    __slots__ = ("_began", "ends")

    def __init__(self) -> None:
        """Begin, behind the rest of others."""
        self._sleep_until(_free_at[0])

    def rest(self) -> None:
        """Leave the interpreter to who waits for it, for as long as the turn was; begin another."""
        released = time.perf_counter()
        time.sleep(0)
        now = time.perf_counter()
        if now - released < _ALONE and _free_at[0] < now:
            self._begin(now)
            return
        begins = self._paid(released)
        _free_at[0] = begins + TURN
        self._sleep_until(begins)

    def end(self) -> None:
        """Leave the rest to those who come next, unless the turn was short."""
        now = time.perf_counter()
        if now >= self.ends:
            _free_at[0] = self._paid(now)

    def _paid(self, now: float) -> float:
        return max(now, _free_at[0]) + min(now - self._began, _LONGEST_REST)

    def _sleep_until(self, begins: float) -> None:
        left = begins - time.perf_counter()
        if left > 0:
            time.sleep(left)
        self._begin(time.perf_counter())

    def _begin(self, now: float) -> None:
        self._began = now
        self.ends = now + TURN


@contextmanager
def taking_turns() -> Iterator[Turn]:
    """Count the block as a turn, which it may divide by rests."""
    turn = Turn()
    try:
        yield turn
    finally:
        turn.end()
