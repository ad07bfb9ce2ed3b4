"""Manage the slots for the states of sequences. Plain Python over integers; knows no tensors.

Layers that keep a state of a text, and not its keys and values, need memory beside the blocks. A
slot holds one state of all such layers, as it is behind so many tokens. A slot is in exactly one of
three states:

    free    no row holds it, and its content is worthless
    held    a row goes on from it, or will write to it; several may go on from one
    kept    no row holds it, but it is a *snapshot*: it has the hash of a block, and a text that is
            the same up to the end of that block goes on from it

A row holds two slots at most: one that its next step reads, and one that this step writes. A slot
with a hash, or with several holders, is never written, so nothing is ever copied: a row whose state
becomes a snapshot reads it once more and then writes to another slot. Two slots for each row always
suffice: snapshots lie in slots that rows do not use. ``check_integrity`` proves it.

Snapshots along a prompt are evicted first, the least recently used first; then the important ones:
those at the end of a text, those where it parted from another one, and those that were found.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.cached_sequence import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncgen.engine.kv_cache.cached_sequence import CachedSequence


class SlotPool:
    """Slots ``0..num_slots-1``, and the number of holders of each.

    Attributes:
        num_rows: Most rows that may run at a time.
        num_slots: Number of slots: two for each row, and those for snapshots.
        num_running: Rows that run.
    """

    def __init__(self, num_rows: int, num_snapshots: int = 0) -> None:
        """Start with all slots free.

        Args:
            num_rows: Most rows that may run at a time, at least 1.
            num_snapshots: Slots beside those of the rows. Snapshots lie in all slots that rows
                do not use.

        Raises:
            ValueError: There is no slot for any row, or a count is negative.
        """
        if num_rows < 1:
            raise ValueError(f"`num_rows` is {num_rows}: at least 1 is needed")
        if num_snapshots < 0:
            raise ValueError(f"`num_snapshots` is {num_snapshots}: must not be negative")
        self.num_rows = num_rows
        self.num_slots = 2 * num_rows + num_snapshots
        self.num_running = 0
        # Slots from `num_touched` on were never used; memory mapped on first use stays unmapped.
        self._num_touched = 0
        self._freed: list[int] = []
        self._holders: dict[int, int] = {}
        self._slot_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        # Snapshots that no row holds, least recently used first.
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._kept_important: OrderedDict[int, None] = OrderedDict()
        self._important: set[int] = set()  # snapshots, held ones included

    @property
    def has_free_row(self) -> bool:
        """True if another row may run."""
        return self.num_running < self.num_rows

    @property
    def num_held(self) -> int:
        """Slots that rows hold."""
        return len(self._holders)

    @property
    def num_kept(self) -> int:
        """Snapshots that no row holds."""
        return len(self._kept) + len(self._kept_important)

    @property
    def num_touched(self) -> int:
        """Slots that were used at some time: those with numbers below this one."""
        return self._num_touched

    def start(self, block_hash: bytes | None) -> int:
        """Let a row run.

        Args:
            block_hash: Hash of the snapshot that it goes on from, which the pool ``knows``;
                ``None`` to begin a text.

        Returns:
            Slot of the snapshot; ``NO_SLOT`` at the beginning of a text.
        """
        assert self.has_free_row, "no row may run: check `has_free_row` before"
        self.num_running += 1
        if block_hash is None:
            return NO_SLOT
        slot = self._slot_of[block_hash]
        count = self._holders.get(slot, 0)
        if not count:
            self._shelf(slot).pop(slot)
        self._important.add(slot)
        self._holders[slot] = count + 1
        return slot

    def take(self) -> int:
        """Take a slot for a running row to write to: the lowest free one, or evict a snapshot."""
        if self._freed:
            slot = heapq.heappop(self._freed)
        elif self._num_touched < self.num_slots:
            slot = self._num_touched
            self._num_touched += 1
        else:
            shelf = self._kept or self._kept_important
            assert shelf, "a row holds more than two slots"
            slot, _ = shelf.popitem(last=False)
            self._forget(slot)
        self._holders[slot] = 1
        return slot

    def leave(self, slot: int) -> int:
        """Hold a slot no longer for reading, since the row's state is in another one now.

        Returns:
            The slot, for the row to write to, if no other row can find it; else ``NO_SLOT``.
        """
        if slot == NO_SLOT:
            return slot
        if self._holders[slot] == 1 and slot not in self._hash_of:
            return slot
        self._release(slot)
        return NO_SLOT

    def end(self, *slots: int) -> None:
        """Let a row run no longer; its slots become free, or are kept as snapshots."""
        self.num_running -= 1
        for slot in slots:
            if slot != NO_SLOT:
                self._release(slot)

    def publish(self, slot: int, block_hash: bytes, *, is_important: bool) -> bool:
        """Make the state of a row a snapshot.

        Args:
            slot: Slot that the caller holds, and will not write to.
            block_hash: Hash of the block that the state is behind.
            is_important: True to evict it after the snapshots along prompts.

        Returns:
            True if it is a new snapshot; False if there is one of this hash, which stays.
        """
        if block_hash in self._slot_of or slot in self._hash_of:
            return False
        self._slot_of[block_hash] = slot
        self._hash_of[slot] = block_hash
        if is_important:
            self._important.add(slot)
        return True

    def unpublish(self, hashes: Iterable[bytes]) -> None:
        """Make snapshots unknown; hashes without a snapshot are fine."""
        for each in hashes:
            slot = self._slot_of.get(each)
            if slot is None:
                continue
            if slot not in self._holders:
                self._shelf(slot).pop(slot)
                heapq.heappush(self._freed, slot)
            self._forget(slot)

    def demote(self, block_hash: bytes) -> None:
        """Make a snapshot less important; a hash without one is fine."""
        slot = self._slot_of.get(block_hash)
        if slot is not None and slot in self._important:
            if slot not in self._holders:
                del self._kept_important[slot]
                self._kept[slot] = None
            self._important.remove(slot)

    def knows(self, block_hash: bytes) -> bool:
        """Return whether there is a snapshot behind this block."""
        return block_hash in self._slot_of

    def check_integrity(self, rows: Iterable[CachedSequence], page_size: int) -> None:
        """Prove that the pool is consistent; for tests.

        Args:
            rows: Rows that run, each with the right hashes of its blocks.
            page_size: Positions of a block.

        Raises:
            AssertionError: A slot is in two states or in none, has more or fewer holders than rows
                name it, or is shared although it will be written; a row has no state, or a hash
                is not that of the row's tokens.
        """
        rows = list(rows)
        free, kept = {*self._freed}, {*self._kept, *self._kept_important}
        assert len(free) == len(self._freed), "a slot is free twice"
        assert not free & self._holders.keys(), "a slot is both free and held"
        assert not free & kept, "a slot is both free and kept"
        assert not kept & self._holders.keys(), "a slot is both kept and held"
        assert len(kept) == self.num_kept, "a slot is kept twice"
        assert len(free) + len(kept) + self.num_held == self._num_touched, "a slot is lost"
        assert self._num_touched <= self.num_slots, "there are too many slots"
        assert len(rows) == self.num_running <= self.num_rows, "rows are not those that run"
        named = Counter(slot for row in rows for slot in (row.slot, row.next_slot))
        del named[NO_SLOT]
        assert named == self._holders, "holders are not those that name the slot"
        assert self._hash_of == {slot: name for name, slot in self._slot_of.items()}
        assert kept <= self._hash_of.keys(), "a kept slot cannot be found"
        assert not free & self._hash_of.keys(), "a free slot can be found"
        assert self._important <= self._hash_of.keys(), "a slot is important and no snapshot"
        assert self._important >= self._kept_important.keys(), "a snapshot lies on the wrong shelf"
        assert not self._important & self._kept.keys(), "a snapshot lies on the wrong shelf"
        for row in rows:
            assert (row.slot != NO_SLOT) == (row.num_computed > 0), "a row has lost its state"
            if row.next_slot != NO_SLOT:
                assert self._holders[row.next_slot] == 1, "a slot that will be written is shared"
                assert row.next_slot not in self._hash_of, "a slot that is written can be found"
            name = self._hash_of.get(row.slot)
            if name is not None:
                blocks, rest = divmod(row.num_computed, page_size)
                assert not rest and row.block_hashes[blocks - 1] == name, (
                    "a hash is of other tokens"
                )

    def _release(self, slot: int) -> None:
        count = self._holders[slot]
        if count > 1:
            self._holders[slot] = count - 1
            return
        del self._holders[slot]
        if slot in self._hash_of:
            self._shelf(slot)[slot] = None
        else:
            heapq.heappush(self._freed, slot)

    def _shelf(self, slot: int) -> OrderedDict[int, None]:
        return self._kept_important if slot in self._important else self._kept

    def _forget(self, slot: int) -> None:
        del self._slot_of[self._hash_of.pop(slot)]
        self._important.discard(slot)
