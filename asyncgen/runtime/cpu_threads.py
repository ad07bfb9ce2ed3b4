"""Set how many CPU threads torch computes with, and use fewer while other processes compete.

Torch keeps a thread count for each thread, and one that new threads start with; setting it on a
thread sets both. So an engine restores the count when it closes.

OpenMP gives each thread an equal share of every operator and waits for the last one. If another
process takes one of two cores, a step takes ten times as long; with one thread it takes twice as
long. So `CpuBackoff` computes with one thread fewer for a while after slow steps. Our own kernels
need none of this: their threads take work from each other (``asyncgen/native/src/team.h``).
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SLOW_FACTOR: Final = 3.0
"""A step that takes so many times the usual time is slow."""

NUM_SLOW_STEPS: Final = 2
"""Slow steps in a row after which a thread is given up."""

DRIFT: Final = 1.01
"""Growth of the usual time a step, because texts grow and the machine's load changes."""

MOST_TOKENS: Final = 128
"""Steps with more tokens are prompts, whose time does not depend on the token count alone."""

FIRST_PAUSE: Final = 0.25
MOST_PAUSE: Final = 8.0
"""Seconds until a thread returns: doubled each time that its first steps are slow again."""

_lock = threading.Lock()
_requested: dict[object, int] = {}  # thread counts of the engines that are open, newest last
_initial = 0
_local = threading.local()


@contextmanager
def computing_threads(count: int | None) -> Iterator[None]:
    """Compute on this thread with so many CPU threads; enter and leave on the same thread.

    The last one to leave restores the count from before the first one entered. Until then the
    newest count of those inside applies.

    Args:
        count: OpenMP threads; ``None`` leaves torch's choice.
    """
    global _initial
    if count is None:
        try:
            yield
        finally:
            _restore()
        return
    import torch

    key = object()
    with _lock:
        if not _requested:
            _initial = torch.get_num_threads()
        _requested[key] = count
        torch.set_num_threads(count)
    try:
        yield
    finally:
        _restore()
        with _lock:
            del _requested[key]
            torch.set_num_threads(next(reversed(_requested.values()), _initial))


def lower_threads(count: int) -> None:
    """Compute on this thread with fewer CPU threads, until `computing_threads` is left."""
    import torch

    if not hasattr(_local, "before"):
        _local.before = torch.get_num_threads()
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _restore() -> None:
    """Undo `lower_threads`."""
    before = _local.__dict__.pop("before", None)
    if before is not None:
        import torch

        torch.set_num_threads(before)


class CpuBackoff:
    """Thread count of the next step: call `begin_step`, compute, call `end_step`."""

    def __init__(self, num_threads: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin with all threads.

        Args:
            num_threads: Threads to use while nothing competes.
            clock: Seconds.
        """
        self._most = self._num_threads = num_threads
        self._clock = clock
        self._usual: dict[int, float] = {}  # seconds of a step with all threads, by token count
        self._num_slow = 0
        self._back_at = 0.0
        self._pause = FIRST_PAUSE
        self._began = 0.0

    def begin_step(self) -> int:
        """Note that a step begins, and return the number of threads for it."""
        self._began = self._clock()
        if self._num_threads < self._most and self._began >= self._back_at:
            self._num_threads = self._most
            self._num_slow = NUM_SLOW_STEPS - 1  # one more slow step is enough
        return self._num_threads

    def end_step(self, num_tokens: int) -> None:
        """Note that the step has ended, and judge its time.

        Args:
            num_tokens: Tokens that it computed.
        """
        now = self._clock()
        if num_tokens > MOST_TOKENS:
            return
        took, usual = now - self._began, self._usual.get(num_tokens)
        if usual is None or took < SLOW_FACTOR * usual:
            self._num_slow = 0
            if self._num_threads == self._most:
                self._usual[num_tokens] = took if usual is None else min(took, DRIFT * usual)
                if now - self._back_at > self._pause:
                    self._pause = FIRST_PAUSE
            return
        self._num_slow += 1
        if self._num_slow >= NUM_SLOW_STEPS and self._num_threads > 1:
            self._num_threads -= 1
            self._num_slow = 0
            self._back_at = now + self._pause
            self._pause = min(2 * self._pause, MOST_PAUSE)
