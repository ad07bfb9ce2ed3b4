"""Index the partial blocks at the ends of finished texts. Plain Python over integers.

The last block of a text is seldom full. When a text longer than a block frees its blocks, that
block stays in the prefix cache as a *partial block*: it is found by the hash of the blocks before
it and by its tokens, and is evicted like any other cached block. One text takes it over and writes
behind the tokens that both have in common; no other text finds it any more.

A text takes the partial block with most tokens in common, if at least half of the block matches.
So texts that only begin alike (with the same instructions) do not take the ends of other texts
away.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_hashes import next_block_hash, num_common

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAX_COMPARED = 8
"""Candidates with equally many tokens in common that are compared; there may be very many."""


class PartialBlocks:
    """Tokens of all partial blocks, by the hash of the blocks before them.

    Attributes:
        by_block: Hash of the blocks before it and tokens of each partial block, by block id.
    """

    def __init__(self) -> None:
        """Start empty."""
        # Sorted by tokens: the best match of a text stands beside the place of its own tokens.
        self._behind: dict[bytes, list[tuple[int, ...]]] = {}
        self.by_block: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    def add(self, before: bytes, tokens: tuple[int, ...], blocks: Iterable[int]) -> None:
        """Add a partial block whose content is not in the index yet.

        Args:
            before: Hash of the blocks before it.
            tokens: Tokens in it, at least one.
            blocks: Block ids, one for each cache group.
        """
        insort(self._behind.setdefault(before, []), tokens)
        self.by_block.update(dict.fromkeys(blocks, (before, tokens)))

    def remove(self, block: int) -> None:
        """Remove the partial block of this id in all groups; any other id is fine."""
        before, tokens = self.by_block.pop(block, (b"", ()))
        texts = self._behind.get(before, [])
        place = bisect_left(texts, tokens)
        if texts[place : place + 1] == [tokens]:
            del texts[place]
            if not texts:
                del self._behind[before]

    def find(self, before: bytes, tokens: Sequence[int]) -> tuple[tuple[int, ...], int] | None:
        """Find the partial block that a text can take over.

        Args:
            before: Hash of the text's first blocks.
            tokens: The text behind them, up to a full block.

        Returns:
            Tokens of the partial block, and how many of them are in common: half or more.
        """
        texts = self._behind.get(before)
        if texts is None:
            return None
        wanted = tuple(tokens)
        place = bisect_left(texts, wanted)
        common = max(num_common(text, wanted) for text in texts[max(place - 1, 0) : place + 1])
        # Of equally good ones take the shortest: it loses least for others.
        first = bisect_left(texts, wanted[:common])
        some = texts[first : first + _MAX_COMPARED]
        best = min((text for text in some if text[:common] == wanted[:common]), key=len)
        return (best, common) if common and 2 * common >= len(best) else None

    def hashes(self) -> dict[int, bytes]:
        """Return the hash of each partial block in the first cache group, by block id."""
        return {block: next_block_hash(*content) for block, content in self.by_block.items()}

    def check_integrity(self, page_size: int) -> None:
        """Prove that the index is consistent; for tests.

        Raises:
            AssertionError: It is not.
        """
        found = {(before, text) for before, texts in self._behind.items() for text in texts}
        assert found <= {*self.by_block.values()}, "an indexed text has no block"
        assert len(found) == sum(map(len, self._behind.values())), "a text is indexed twice"
        assert all(texts == sorted(texts) != [] for texts in self._behind.values())
        assert all(0 < len(tokens) < page_size for _, tokens in self.by_block.values())
