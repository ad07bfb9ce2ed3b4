"""Describe the size of the KV cache, and compute how long texts can be in it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from asyncgen.engine.kv_cache.block_pool import max_blocks


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
