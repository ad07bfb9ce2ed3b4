"""Manage the blocks of the KV cache: which are free, held by sequences, or cached. Plain Python.

A block is in exactly one of three states:

    free    no sequence holds it, and its content is worthless
    held    one or more sequences hold it
    cached  no sequence holds it, but it has a hash: a sequence with the same beginning may find it;
            the least recently used one is evicted first

Full blocks are published under a hash (`block_hashes`), and a full block is never written again. A
partial block has a hash only while it is cached (`partial_blocks`): the one sequence that takes it
over takes the hash away. So no shared block is ever written, and nothing is ever copied.
``check_integrity`` proves it.

A block holds the layers of one cache group (``asyncgen.cache.layer_groups``), of any group. The
pool only knows the groups' windows; `block_tables` serves a sequence in all groups.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, OrderedDict
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from math import ceil, floor
from typing import TYPE_CHECKING

from asyncgen.cache.layer_groups import first_block, most_blocks
from asyncgen.engine.kv_cache.block_hashes import block_hashes, group_hash
from asyncgen.engine.kv_cache.cached_sequence import GONE
from asyncgen.engine.kv_cache.partial_blocks import PartialBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen.engine.kv_cache.cached_sequence import CachedSequence
    from asyncgen.engine.kv_cache.state_slots import SlotPool


class OutOfBlocksError(Exception):
    """Fewer blocks are available than were requested. Internal: the scheduler checks before."""


class Reservation:
    """Memory that is reserved for a cache outside the pool; see ``BlockPool.reserve``."""

    __slots__ = ("_pool", "client", "num_pages")

    def __init__(self, pool: BlockPool, num_pages: int, client: str) -> None:
        """Called by ``BlockPool.reserve``.

        Args:
            pool: Pool of the blocks.
            num_pages: Number of blocks.
            client: Client that they are reserved for.
        """
        self._pool = pool
        self.client = client
        self.num_pages = num_pages

    def release(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._pool._end_reservation(self)
        self.num_pages = 0


class BlockPool:
    """Blocks ``0..num_pages-1`` of equal size, and the number of holders of each.

    Attributes:
        num_pages: Number of blocks.
        page_size: Positions of a block.
        sharing: True if blocks are published.
        windows: Keys that a query sees, itself included, in each cache group; ``None``: all.
        slots: State slots; ``None`` if the model keeps no states.
        snapshot_pages: Distance of state snapshots along a text, in blocks.
        reserved_by: Blocks reserved for caches outside the pool, by client.
        num_reserved: Sum of these.
        partial_blocks: Index of the cached blocks that are not full.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        sharing: bool = True,
        windows: tuple[int | None, ...] = (None,),
        slots: SlotPool | None = None,
        snapshot_pages: int = 1,
    ) -> None:
        """Start with all blocks free.

        Args:
            num_pages: Number of blocks, at least 1.
            page_size: Positions of a block, at least 1.
            sharing: False to publish no blocks: every sequence computes its whole prompt.
            windows: Keys that a query sees, itself included, in each cache group; ``None``: all.
                By default there is one group without a window.
            slots: State slots; ``None`` if the model keeps no states.
            snapshot_pages: Distance of state snapshots along a text, in blocks, at least 1.

        Raises:
            ValueError: A size below 1.
        """
        if num_pages < 1 or page_size < 1:
            raise ValueError(
                f"`num_pages` is {num_pages} and `page_size` is {page_size}: both must be at "
                "least 1; give the pool more memory"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self.sharing = sharing
        self.slots = slots
        self.snapshot_pages = snapshot_pages
        self.windows = windows
        # Blocks from `num_touched` on were never used: they need no entry in the heap, and memory
        # that the system maps on first use stays unmapped.
        self._num_touched = 0
        self._freed: list[int] = []
        self._holders: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self.num_reserved = 0
        self.reserved_by: Counter[str] = Counter()
        self.partial_blocks = PartialBlocks()

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free and cached ones, less the reserved ones."""
        return self.num_pages - len(self._holders) - self.num_reserved

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return len(self._holders)

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold or that are reserved."""
        return len(self._holders) + self.num_reserved

    @property
    def occupied(self) -> tuple[int, int]:
        """Memory that requests hold or have reserved, and all of it: in rows or in blocks."""
        if self.slots is not None:
            return self.slots.num_running, self.slots.num_rows
        return len(self._holders) + self.num_reserved, self.num_pages

    @property
    def num_kept(self) -> int:
        """Cached blocks: no sequence holds them, and they can be found."""
        return len(self._cached)

    @property
    def num_touched(self) -> int:
        """Blocks that were used at some time: those with ids below this number."""
        return self._num_touched

    def pages_for(self, num_tokens: int) -> int:
        """Return the blocks of one table that so many tokens fill."""
        return -(-num_tokens // self.page_size)

    def take(self, count: int) -> list[int]:
        """Take blocks that no sequence holds, lowest ids first so that used ones lie together.

        Args:
            count: Number of blocks. Cached blocks are evicted where the free ones do not suffice,
                the least recently used first.

        Returns:
            Their ids in ascending order.

        Raises:
            OutOfBlocksError: Fewer are available; nothing was taken.
        """
        self._make_free(count)
        freed, holders = self._freed, self._holders
        blocks = [heapq.heappop(freed) for _ in range(min(count, len(freed)))]
        fresh = self._num_touched
        self._num_touched = fresh + count - len(blocks)
        blocks.extend(range(fresh, self._num_touched))
        for block in blocks:
            holders[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks that ``lookup`` found, together with the sequences that hold them."""
        holders = self._holders
        for block in blocks:
            count = holders.get(block, 0)
            if not count:
                del self._cached[block]
            holders[block] = count + 1

    def release(self, blocks: Sequence[int]) -> None:
        """Hold blocks no longer.

        Blocks that no other sequence holds become cached if they have a hash, else free. The end
        of a text is evicted before its beginning, which more texts may have in common.

        Args:
            blocks: Blocks that the caller holds, from the beginning of the text to its end.
        """
        holders, hashes = self._holders, self._hash_of
        for block in reversed(blocks):
            count = holders[block]
            if count > 1:
                holders[block] = count - 1
                continue
            del holders[block]
            if block in hashes:
                self._cached[block] = None
            else:
                heapq.heappush(self._freed, block)

    def publish(self, block: int, block_hash: bytes) -> None:
        """Add a block to the prefix cache; it must not be written until a sequence takes it over.

        Of two blocks with the same content the first one stays in the cache.

        Args:
            block: A block that the caller holds.
            block_hash: Hash of its content (see `block_hashes`).
        """
        if self.sharing and block_hash not in self._block_of and block not in self._hash_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def unpublish(self, blocks: Iterable[int]) -> None:
        """Take blocks out of the prefix cache; they may contain NaN, or will be written.

        Args:
            blocks: Any blocks; cached ones become free.
        """
        for block in blocks:
            if block not in self._hash_of:
                continue
            self._forget_hash(block)
            if block in self._cached:
                del self._cached[block]
                heapq.heappush(self._freed, block)

    def lookup(self, hashes: Iterable[bytes]) -> list[int]:
        """Find blocks by hash; ``share`` them before any others are taken.

        Args:
            hashes: Hashes of a sequence's first blocks, in order.

        Returns:
            The longest run from the beginning.
        """
        block_of = self._block_of
        blocks: list[int] = []
        for each in hashes:
            block = block_of.get(each)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_in_full_groups(self, hashes: Sequence[bytes]) -> int:
        """Return how many of a sequence's first blocks all groups without a window have."""
        count = len(hashes)
        for group, window in enumerate(self.windows):
            if window is None:
                count = len(self.lookup(group_hash(each, group) for each in hashes[:count]))
        return count

    def knows(self, block_hash: bytes) -> bool:
        """Return whether there is a block with this content."""
        return block_hash in self._block_of

    def num_with_others(self, blocks: Iterable[int]) -> int:
        """Return how many of these held blocks have more than one holder."""
        return sum(self._holders[block] > 1 for block in blocks)

    def num_kept_among(self, blocks: Iterable[int]) -> int:
        """Return how many of these are cached, and so no longer available once they are shared."""
        cached = self._cached
        return sum(block in cached for block in blocks)

    def is_private(self, block: int) -> bool:
        """Return whether a held block may be written: it has one holder and no hash."""
        return self._holders[block] == 1 and block not in self._hash_of

    def reserve(self, num_pages: int, client: str = "") -> Reservation:
        """Reserve memory for a cache outside the pool, which is planned with the same memory.

        Nothing is allocated: so many blocks are left free. The lowest ids are taken first, so the
        high end of the pool stays unused.

        Args:
            num_pages: Memory in blocks, at least 0.
            client: Client that they are reserved for.

        Returns:
            Reservation to release once the cache is gone.

        Raises:
            OutOfBlocksError: Fewer are available; nothing was reserved.
        """
        self._make_free(num_pages)
        self.num_reserved += num_pages
        self.reserved_by[client] += num_pages
        return Reservation(self, num_pages, client)

    def forget_kept(self) -> None:
        """Free every cached block."""
        self._evict(len(self._cached))

    def check_integrity(self, sequences: Iterable[CachedSequence]) -> None:
        """Prove that the pool is consistent; for tests, since it computes every hash again.

        Args:
            sequences: Every sequence that holds blocks.

        Raises:
            AssertionError: A block is in two states or in none, has more or fewer holders than
                tables name it, or is shared although it will be written; a table is too short,
                or lacks a block that is seen; a hash does not belong to the content;
                reservations do not add up; a partial block is held, or cannot be found.
        """
        sequences = list(sequences)
        free, holders = {*self._freed}, self._holders  # without those that were never used
        touched = free | holders.keys() | self._cached.keys()
        assert not touched or max(touched) < self._num_touched, "a block was never taken"
        assert len(free) == len(self._freed), "a block is free twice"
        assert not free & holders.keys(), "a block is both free and held"
        assert not free & self._cached.keys(), "a block is both free and cached"
        assert not self._cached.keys() & holders.keys(), "a block is both cached and held"
        assert len(free) + len(self._cached) + len(holders) == self._num_touched, "a block is lost"
        num_free = self.num_pages - self._num_touched + len(free)
        assert 0 <= self.num_reserved <= num_free, "reserved blocks are in use"
        named = Counter(each for one in sequences for each in blocks_in(one.block_tables))
        assert named == holders, "holders are not those whose tables name the block"
        assert self._hash_of == {block: name for name, block in self._block_of.items()}
        assert self._cached.keys() <= self._hash_of.keys(), "a cached block cannot be found"
        assert not free & self._hash_of.keys(), "a free block can be found"
        self.partial_blocks.check_integrity(self.page_size)
        for block, name in self.partial_blocks.hashes().items():
            assert block in self._cached, "a partial block is held"
            names = [group_hash(name, group) for group in range(len(self.windows))]
            assert self._hash_of[block] in names, "a partial block has a wrong hash"
        for sequence in sequences:
            self._check_tables(sequence)
        if self.slots is not None:
            self.slots.check_integrity(sequences, self.page_size)

    def _check_tables(self, sequence: CachedSequence) -> None:
        """Prove that a sequence has all blocks that it will see, and writes none that is shared."""
        size, computed, tables = self.page_size, sequence.num_computed, sequence.block_tables
        full = computed // size
        blocks = blocks_in(tables)
        assert len(set(blocks)) == len(blocks), "a block is twice in the tables of a sequence"
        assert len(tables) == len(self.windows), "a group has no table"
        hashes = block_hashes(sequence.tokens[: full * size], size, sequence.salt)
        for group, (table, window) in enumerate(zip(tables, self.windows, strict=True)):
            assert len(table) * size >= computed, "the table is too short"
            num_gone = table.count(GONE)
            assert num_gone <= first_block(window, computed, size), "a block that is seen is gone"
            assert GONE not in table[num_gone:], "a block is gone behind one that is not"
            for block in table[full:]:
                assert self._holders[block] == 1, "a block that will be written is shared"
                assert block not in self._hash_of, "a block that will be written can be found"
            for block, chained in zip(table, hashes, strict=False):
                name = group_hash(chained, group)
                assert self._hash_of.get(block, name) == name, "a block has a wrong hash"

    def _make_free(self, count: int) -> None:
        """Evict cached blocks until so many blocks are free beside the reserved ones."""
        available = self.num_pages - len(self._holders) - self.num_reserved
        if count > available:
            raise OutOfBlocksError(f"{count} blocks are wanted, {available} are available")
        num_free = self.num_pages - self._num_touched + len(self._freed) - self.num_reserved
        if count > num_free:
            self._evict(count - num_free)

    def _evict(self, count: int) -> None:
        """Free so many cached blocks, the least recently used first."""
        for _ in range(count):
            block, _ = self._cached.popitem(last=False)
            self._forget_hash(block)
            heapq.heappush(self._freed, block)

    def _forget_hash(self, block: int) -> None:
        del self._block_of[self._hash_of.pop(block)]
        self.partial_blocks.remove(block)

    def _end_reservation(self, reservation: Reservation) -> None:
        self.num_reserved -= reservation.num_pages
        self.reserved_by[reservation.client] -= reservation.num_pages
        if not self.reserved_by[reservation.client]:
            del self.reserved_by[reservation.client]


def max_blocks(
    windows: Sequence[int | None], page_size: int, positions: int, chunk: int = 1
) -> int:
    """Return the most blocks that a text holds at a time, in all groups, up to a length.

    Args:
        windows: Window of each group.
        page_size: Positions of a block.
        positions: Length of the text, at least 1.
        chunk: Tokens of it that are computed at once, at least 1.
    """
    blocks, total = -(-positions // page_size), 0
    for window in windows:
        seen = blocks if window is None else most_blocks(window - 1 + chunk, page_size)
        total += min(blocks, seen)
    return total


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Memory that an engine has for keys and values.

    Attributes:
        num_pages: Blocks in all.
        page_size: Positions of a block.
        num_spare: Blocks beside these that no request gets.
        windows: Keys that a query sees, itself included, in each cache group; ``None``: all.
        num_slots: Sequences that have states at a time; ``None`` if the model keeps no states.
        num_snapshots: States that are kept beside those of these sequences.
        outside: Memory that the positions of a block take in a cache outside the pool, in blocks;
            more than 1 where blocks are packed.
    """

    num_pages: int
    page_size: int
    num_spare: int = 0
    windows: tuple[int | None, ...] = (None,)
    num_slots: int | None = None
    num_snapshots: int = 0
    outside: Fraction = Fraction(1)

    def blocks(self, positions: int) -> int:
        """Return the blocks of one table that so many positions take."""
        return -(-positions // self.page_size)

    def pages(self, positions: int) -> int:
        """Return the memory, in blocks, that a row of so many positions takes outside the pool.

        Such a cache keeps all positions in every layer.
        """
        return ceil(self.blocks(positions) * len(self.windows) * self.outside)

    def positions(self, rows: int) -> int:
        """Return the most positions of each of so many rows that have the memory for themselves.

        They lie outside the pool.
        """
        per_block = rows * len(self.windows) * self.outside
        return floor(self.num_pages / per_block) * self.page_size

    def longest_text(self, limit: int) -> int:
        """Return the most positions of a row of the shared batch that has the pool for itself.

        Args:
            limit: Upper bound of the result.
        """
        fits = bisect_right(
            range(1, self.blocks(limit) + 1),
            self.num_pages,
            key=lambda blocks: max_blocks(self.windows, self.page_size, blocks * self.page_size),
        )
        return min(fits * self.page_size, limit)


def blocks_in(tables: Sequence[Sequence[int]]) -> list[int]:
    """Return the blocks in some tables, from the beginning of the text to its end."""
    if len(tables) == 1:
        return [block for block in tables[0] if block != GONE]
    columns = zip_longest(*tables, fillvalue=GONE)
    return [block for column in columns for block in column if block != GONE]
