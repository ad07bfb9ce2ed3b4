"""How many of torch's threads compute while other programs want the processors, too.

OpenMP hands each thread an equal share of every operator and waits for the last one: when a
neighbour takes one of two cores, a step takes ten times as long, and with one thread twice as long.
So where steps are held up, one thread fewer computes for a while. Our own kernels need none of
this: their threads take work from each other (``asyncgen/native/src/team.h``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

HELD_UP: Final = 3.0
"""A step of so many times the usual length was held up."""

STEPS: Final = 2
"""So many steps, one after another, must have been."""

FORGETTING: Final = 1.01
"""What is usual for a number of tokens grows so much a step: texts grow, and machines change."""

MOST_TOKENS: Final = 128
"""Steps of more are prompts, whose length depends on more than their number."""

FIRST_PAUSE: Final = 0.25
MOST_PAUSE: Final = 8.0
"""Seconds until the thread is back: twice as long each time, if it was held up at once again."""


class CpuBackoff:
    """Tells how many threads to compute the next step with; call `count`, step, `note`."""

    def __init__(self, threads: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin with all threads.

        Args:
            threads: As many as there are if nobody disturbs.
            clock: Seconds.
        """
        self._most = self._threads = threads
        self._clock = clock
        self._usual: dict[int, float] = {}  # seconds of a step, by its tokens, with all threads
        self._slow = 0
        self._back_at = 0.0
        self._pause = FIRST_PAUSE
        self._began = 0.0

    def count(self) -> int:
        """Threads of the step that begins now."""
        self._began = self._clock()
        if self._threads < self._most and self._began >= self._back_at:
            self._threads = self._most
            self._slow = STEPS - 1  # if it is held up at once, they are still there
        return self._threads

    def note(self, tokens: int) -> None:
        """Note that the step has ended.

        Args:
            tokens: How many it computed.
        """
        now = self._clock()
        if tokens > MOST_TOKENS:
            return
        took, usual = now - self._began, self._usual.get(tokens)
        if usual is None or took < HELD_UP * usual:
            self._slow = 0
            if self._threads == self._most:
                self._usual[tokens] = took if usual is None else min(took, FORGETTING * usual)
                if now - self._back_at > self._pause:
                    self._pause = FIRST_PAUSE
            return
        self._slow += 1
        if self._slow >= STEPS and self._threads > 1:
            self._threads -= 1
            self._slow = 0
            self._back_at = now + self._pause
            self._pause = min(2 * self._pause, MOST_PAUSE)
