"""Turns of the interpreter: how long a thread runs Python while another one waits for it.

A step of the streams needs the interpreter dozens of times, and each time waits for the turn of
whoever has it. Two remedies, for requests that take tenths of a second of Python: turns are short
while there is such a request, and the thread that works on it rests between slices of its work.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT_TURN = 0.001
"""Seconds; Python's own choice is 0.005."""

SLICE = 0.0005
"""Seconds that a thread works before it rests: a step of the streams waits so long at most."""

_lock = threading.Lock()
_usual: list[float] = []
"""One entry a block that runs: what held before the first of them."""

_own = threading.local()
"""``rests_at``: when this thread is to rest, by ``time.perf_counter``; nothing if it never is."""

_working: list[None] = []
"""One entry a thread that works in slices."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Have threads give way to each other after `SHORT_TURN`, as long as the block takes.

    Not for always: the thread that decodes gives way as soon, also to what would take no time.
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
def slices() -> Iterator[None]:
    """Have `give_way` let this thread rest, as long as the block takes.

    However many threads work in slices, together they take half of the time. Does not nest.
    """
    _working.append(None)
    _own.rests_at = time.perf_counter() + SLICE
    try:
        yield
    finally:
        del _own.rests_at
        _working.pop()


def give_way() -> None:
    """Rest, if this thread works in slices and one is over; call it often."""
    rests_at = getattr(_own, "rests_at", None)
    if rests_at is not None and time.perf_counter() >= rests_at:
        time.sleep(rest())
        _own.rests_at = time.perf_counter() + SLICE


def rest(others: int | None = None) -> float:
    """Return the seconds to rest after a slice, so that half of the time is left to others.

    Args:
        others: How many rest and work as this one does, itself included; by default the threads
            that work in slices.
    """
    return SLICE * (2 * (len(_working) if others is None else others) - 1)
