"""Limit how long a thread holds the Python interpreter while streams wait for it.

A step of the streams needs the interpreter dozens of times, and each time waits until another
thread releases it. Some requests need tenths of a second of Python. Two remedies: the switch
interval is short during such a request, and its thread rests between slices of its work. What is
done on the event loop itself is done in `LoopTurns`.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import anyio
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHORT_TURN = 0.001
"""Switch interval in seconds; Python's default is 0.005."""

SLICE = 0.0005
"""Seconds that a thread works before it rests: the longest wait of a step of the streams."""

BYTES_OF_A_TURN = 64 * 1024
"""Bytes of replies that are laid out or sent before an event loop does other things."""

_lock = threading.Lock()
_usual: list[float] = []
"""Switch interval before the first running block, once for each running block."""

_own = threading.local()
"""``rests_at``: time of this thread's next rest, by ``time.perf_counter``; ``check``: see `slices`.
Absent outside."""

_working: list[None] = []
"""One entry for each thread that works in slices."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Set the switch interval to `SHORT_TURN` while the block runs.

    It is not set for good, because it also interrupts the decode thread more often.
    """
    with _lock:
        _usual.append(_usual[0] if _usual else sys.getswitchinterval())
        sys.setswitchinterval(min(SHORT_TURN, _usual[0]))
    try:
        yield
    finally:
        with _lock:
            before = _usual.pop()
            if not _usual:
                sys.setswitchinterval(before)


@contextmanager
def slices(check: Callable[[], object] | None = None) -> Iterator[None]:
    """Let `give_way` rest this thread while the block runs.

    All threads that work in slices take half of the time together. Does not nest.

    Args:
        check: Called between slices; what it raises ends the work.
    """
    _working.append(None)
    _own.check = check
    _own.rests_at = time.perf_counter() + SLICE
    try:
        yield
    finally:
        del _own.rests_at, _own.check
        _working.pop()


def give_way() -> None:
    """Rest if this thread works in slices and its slice is over; call it often.

    Raises:
        Exception: The work is not wanted any more; see `slices`.
    """
    rests_at = getattr(_own, "rests_at", None)
    if rests_at is not None and time.perf_counter() >= rests_at:
        if _own.check is not None:
            _own.check()
        time.sleep(rest())
        _own.rests_at = time.perf_counter() + SLICE


def rest(others: int | None = None) -> float:
    """Return the seconds to rest after a slice, so that half of the time is left to others.

    Args:
        others: Number of threads that work in slices, with this one; by default counted.
    """
    return SLICE * (2 * (len(_working) if others is None else others) - 1)


class LoopTurns:
    """Turns of an event loop for large replies: all together take `BYTES_OF_A_TURN` in one.

    ``async with turns:`` waits until no other reply has its turn. Not for what waits for a client.
    """

    def __init__(self) -> None:
        """Make it; one for all replies of a loop."""
        self._is_taken = anyio.Lock(fast_acquire=True)
        self._num_bytes = 0

    def spend(self, num_bytes: int) -> None:
        """Count what was laid out in this turn."""
        self._num_bytes += num_bytes

    async def __aenter__(self) -> Self:
        """Wait for a turn."""
        await self._is_taken.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the turn; if its bytes are spent, the loop does other things first."""
        try:
            if self._num_bytes >= BYTES_OF_A_TURN:
                self._num_bytes = 0
                await anyio.lowlevel.checkpoint()
        finally:
            self._is_taken.release()
