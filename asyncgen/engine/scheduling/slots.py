"""Who holds which slot for the states of a text. Plain Python over integers; knows no tensors.

Models whose layers keep a state of a text, and not its keys and values, need one slot a row beside
its pages, from its admission until it ends or is preempted. A state is behind all of its row's
tokens, so no other text can begin with it: a row that comes back computes its tokens again.
Snapshots at the boundaries of pages would be slots that no row holds, found by the keys of pages.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class SlotPool:
    """Slots ``0..num_slots-1``, and which of them are held."""

    def __init__(self, num_slots: int) -> None:
        """Start with all slots free.

        Args:
            num_slots: How many there are, at least 1.

        Raises:
            ValueError: There is none.
        """
        if num_slots < 1:
            raise ValueError(f"`num_slots` is {num_slots}: at least 1 is needed")
        self.num_slots = num_slots
        # Those from `_untouched` on were never held: lazily mapped memory stays unmapped.
        self._untouched = 0
        self._freed: list[int] = []

    @property
    def num_held(self) -> int:
        """Slots that rows hold."""
        return self._untouched - len(self._freed)

    @property
    def num_free(self) -> int:
        """Slots that can be taken."""
        return self.num_slots - self.num_held

    def take(self) -> int:
        """Hold the lowest free slot; there must be one."""
        if self._freed:
            return heapq.heappop(self._freed)
        assert self._untouched < self.num_slots, "no slot is free: ask `num_free` before"
        self._untouched += 1
        return self._untouched - 1

    def release(self, slot: int) -> None:
        """Hold a slot no longer."""
        heapq.heappush(self._freed, slot)

    def check_integrity(self, slots: Iterable[int]) -> None:
        """Prove that the books are right; for tests.

        Args:
            slots: Those that rows hold.

        Raises:
            AssertionError: A slot is held twice, is both free and held, or is lost.
        """
        held = list(slots)
        assert len({*held}) == len(held), "a slot is held by two rows"
        assert not {*held} & {*self._freed}, "a slot is both free and held"
        assert len(held) == self.num_held, "a slot is lost"
