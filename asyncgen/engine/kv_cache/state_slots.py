"""Who holds which slot for the states of texts. Plain Python over integers; knows no tensors.

Layers that keep a state of a text, and not its keys and values, need a place for it beside the
pages. A slot has room for one state of all such layers: what they keep behind so many tokens. It
is in exactly one of three places:

    free    nobody holds it, and what it contains is worth nothing
    held    a row goes on from it, or will write to it; several may go on from one
    kept    no row holds it, but it is a *snapshot*: it has the key of a page, and a text that is
            the same up to the end of that page goes on from it

A row holds two slots at most: that which its next step reads, and one which that step writes. A
slot with a key, or with several holders, is never written. So nothing is ever copied: a row whose
state becomes a snapshot reads it once more and writes to another slot from then on. With two slots
for each row that may run, one is always found, whatever is kept: snapshots live in what rows do not
use. ``check_integrity`` proves it.

Of those that are kept, snapshots on the way of a prompt make room first, the one that was left
longest ago first; then those that are worth more: at the end of a text, where it parted from
another one, and those that were found.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_SLOT: Final = -1
"""Stands for the state of a text that has not begun, and for no slot at all."""


class SlotHolder(Protocol):
    """What ``check_integrity`` reads of a row."""

    @property
    def slot(self) -> int:
        """Where its state is; ``NO_SLOT``: it has not begun."""

    @property
    def next_slot(self) -> int:
        """Where its next step writes; ``NO_SLOT``: that is not decided."""

    @property
    def num_computed(self) -> int:
        """How many tokens its state is behind."""

    @property
    def block_hashes(self) -> list[bytes]:
        """Keys of its first pages, as far as they were needed."""


class SlotPool:
    """Slots ``0..num_slots-1``, and who holds them.

    Attributes:
        num_rows: Most rows that may run at a time.
        num_slots: How many slots there are: two a row, and those beside.
        num_running: Rows that run.
    """

    def __init__(self, num_rows: int, num_snapshots: int = 0) -> None:
        """Start with all slots free.

        Args:
            num_rows: Most rows that may run at a time, at least 1.
            num_snapshots: Slots for snapshots beside those of the rows; snapshots lie in slots
                that rows do not use, too.

        Raises:
            ValueError: There is room for no row, or a count is negative.
        """
        if num_rows < 1:
            raise ValueError(f"`num_rows` is {num_rows}: at least 1 is needed")
        if num_snapshots < 0:
            raise ValueError(f"`num_snapshots` is {num_snapshots}: must not be negative")
        self.num_rows = num_rows
        self.num_slots = 2 * num_rows + num_snapshots
        self.num_running = 0
        # Those from `_untouched` on were never held: lazily mapped memory stays unmapped.
        self._untouched = 0
        self._freed: list[int] = []
        self._holders: dict[int, int] = {}
        self._slot_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        # Both in the order in which they were left.
        self._on_the_way: OrderedDict[int, None] = OrderedDict()
        self._worthy: OrderedDict[int, None] = OrderedDict()
        self._is_worthy: set[int] = set()

    @property
    def has_room(self) -> bool:
        """Whether another row may run."""
        return self.num_running < self.num_rows

    @property
    def num_held(self) -> int:
        """Slots that rows hold."""
        return len(self._holders)

    @property
    def num_kept(self) -> int:
        """Snapshots that no row holds."""
        return len(self._on_the_way) + len(self._worthy)

    @property
    def num_touched(self) -> int:
        """Slots that were used at some time: those below this number."""
        return self._untouched

    def start(self, key: bytes | None) -> int:
        """Let a row run.

        Args:
            key: Of the snapshot that it goes on from, which ``knows`` knows; ``None``: none.

        Returns:
            The slot of that; ``NO_SLOT`` where its text has not begun.
        """
        assert self.has_room, "no row may run: ask `has_room` before"
        self.num_running += 1
        if key is None:
            return NO_SLOT
        slot = self._slot_of[key]
        count = self._holders.get(slot, 0)
        if not count:
            self._shelf(slot).pop(slot)
        self._is_worthy.add(slot)
        self._holders[slot] = count + 1
        return slot

    def take(self) -> int:
        """Hold a slot for a running row to write to, the lowest free one; snapshots make room."""
        if self._freed:
            slot = heapq.heappop(self._freed)
        elif self._untouched < self.num_slots:
            slot = self._untouched
            self._untouched += 1
        else:
            shelf = self._on_the_way or self._worthy
            assert shelf, "a row holds more than two slots"
            slot, _ = shelf.popitem(last=False)
            self._forget(slot)
        self._holders[slot] = 1
        return slot

    def leave(self, slot: int) -> int:
        """Hold a slot no longer for a row whose state is elsewhere by now.

        Returns:
            The slot, for the row to write to, where nobody can find it; else ``NO_SLOT``.
        """
        if slot == NO_SLOT:
            return slot
        if self._holders[slot] == 1 and slot not in self._key_of:
            return slot
        self._release(slot)
        return NO_SLOT

    def end(self, *slots: int) -> None:
        """Let a row run no longer; what it holds becomes free, or is kept if it is a snapshot."""
        self.num_running -= 1
        for slot in slots:
            if slot != NO_SLOT:
                self._release(slot)

    def publish(self, slot: int, key: bytes, *, is_worthy: bool) -> bool:
        """Make the state of a row a snapshot.

        Args:
            slot: One that the caller holds, and will not write to.
            key: Name of the tokens that it is behind (see `pages.block_hashes`).
            is_worthy: Whether it shall outlast snapshots on the way of a prompt.

        Returns:
            Whether it is one now; not so if there is one of the same name, which stays.
        """
        if key in self._slot_of or slot in self._key_of:
            return False
        self._slot_of[key] = slot
        self._key_of[slot] = key
        if is_worthy:
            self._is_worthy.add(slot)
        return True

    def withdraw(self, keys: Iterable[bytes]) -> None:
        """Let nobody find snapshots any more; names of none are fine."""
        for key in keys:
            slot = self._slot_of.get(key)
            if slot is None:
                continue
            if slot not in self._holders:
                self._shelf(slot).pop(slot)
                heapq.heappush(self._freed, slot)
            self._forget(slot)

    def demote(self, key: bytes) -> None:
        """Let a snapshot make room with those on the way of a prompt; an unknown one is fine."""
        slot = self._slot_of.get(key)
        if slot is not None and slot in self._is_worthy:
            if slot not in self._holders:
                del self._worthy[slot]
                self._on_the_way[slot] = None
            self._is_worthy.remove(slot)

    def knows(self, key: bytes) -> bool:
        """Whether there is a snapshot of this name."""
        return key in self._slot_of

    def check_integrity(self, rows: Iterable[SlotHolder], page_size: int) -> None:
        """Prove that the books are right; for tests.

        Args:
            rows: Those that run, each with the right keys of its pages.
            page_size: Tokens of a page.

        Raises:
            AssertionError: A slot is in two places or in none, has more or fewer holders than rows
                name it, or is shared although it will be written; a row has no state, or a key
                is not that of the row's tokens.
        """
        rows = list(rows)
        free, kept = {*self._freed}, {*self._on_the_way, *self._worthy}
        assert len(free) == len(self._freed), "a slot is free twice"
        assert not free & self._holders.keys(), "a slot is both free and held"
        assert not free & kept, "a slot is both free and kept"
        assert not kept & self._holders.keys(), "a slot is both kept and held"
        assert len(kept) == self.num_kept, "a slot is kept twice"
        assert len(free) + len(kept) + self.num_held == self._untouched, "a slot is lost"
        assert self._untouched <= self.num_slots, "there are too many slots"
        assert len(rows) == self.num_running <= self.num_rows, "rows are not those that run"
        named = Counter(slot for row in rows for slot in (row.slot, row.next_slot))
        del named[NO_SLOT]
        assert named == self._holders, "holders are not those that name the slot"
        assert self._key_of == {slot: key for key, slot in self._slot_of.items()}
        assert kept <= self._key_of.keys(), "a slot is kept that cannot be found"
        assert not free & self._key_of.keys(), "a free slot can be found"
        assert self._is_worthy <= self._key_of.keys(), "what is no snapshot is worth nothing"
        assert self._is_worthy >= self._worthy.keys(), "a snapshot lies on the wrong shelf"
        assert not self._is_worthy & self._on_the_way.keys(), "a snapshot lies on the wrong shelf"
        for row in rows:
            assert (row.slot != NO_SLOT) == (row.num_computed > 0), "a row has lost its state"
            if row.next_slot != NO_SLOT:
                assert self._holders[row.next_slot] == 1, "a slot that will be written is shared"
                assert row.next_slot not in self._key_of, "a slot that is written can be found"
            key = self._key_of.get(row.slot)
            if key is not None:
                blocks, rest = divmod(row.num_computed, page_size)
                assert not rest and row.block_hashes[blocks - 1] == key, "a key is of other tokens"

    def _release(self, slot: int) -> None:
        count = self._holders[slot]
        if count > 1:
            self._holders[slot] = count - 1
            return
        del self._holders[slot]
        if slot in self._key_of:
            self._shelf(slot)[slot] = None
        else:
            heapq.heappush(self._freed, slot)

    def _shelf(self, slot: int) -> OrderedDict[int, None]:
        return self._worthy if slot in self._is_worthy else self._on_the_way

    def _forget(self, slot: int) -> None:
        del self._slot_of[self._key_of.pop(slot)]
        self._is_worthy.discard(slot)
