"""Ends of texts that are kept for whoever goes on from them. Plain Python over integers.

The last page of a text is seldom full. When a text of more than a page gives its pages back, what
is in that page stays as a *tail*: a kept page that is found by what comes before it and by its
tokens, and is given up as any kept page is. One text goes on from it, and takes it over: nobody
else finds it from then on, so that it may be written as any page of a text's own. What the text has
in common with the tail is known; what is behind that in the page is overwritten.

The tail with the most in common is the one. A text that has less than half of it in common leaves
it to others: texts that begin alike (with the same instructions) do not take the ends of others'
texts away. Nor is it found out token by token what is in there: who has half of it in common takes
it, whether the token behind that is the right one or not.

Which tails there are is known here; `groups` leaves them and looks for them, for all groups of
layers together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_hashes import next_block_hash, num_common

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LOOKED_AT = 8
"""PartialBlocks with most in common, of which there may be many, that one is chosen of."""


class PartialBlocks:
    """Tokens of all tails, by the key of what comes before them."""

    def __init__(self) -> None:
        """Start without any."""
        # In the order of their tokens: who has most in common with a text stands beside its place.
        self._behind: dict[bytes, list[tuple[int, ...]]] = {}
        self._of_page: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        """How many pages are tails or parts of one."""
        return len(self._of_page)

    def add(self, before: bytes, tokens: tuple[int, ...], pages: Iterable[int]) -> None:
        """Note a tail, of which there is no other one with this content.

        Args:
            before: Key of the pages before it.
            tokens: What is in it, at least one.
            pages: Where it is, in each group of layers.
        """
        insort(self._behind.setdefault(before, []), tokens)
        self._of_page.update(dict.fromkeys(pages, (before, tokens)))

    def forget(self, page: int) -> None:
        """Note that a page is not kept any more; with it goes the tail. Any other page is fine."""
        before, tokens = self._of_page.pop(page, (b"", ()))
        tails = self._behind.get(before, [])
        place = bisect_left(tails, tokens)
        if tails[place : place + 1] == [tokens]:
            del tails[place]
            if not tails:
                del self._behind[before]

    def find(
        self, before: bytes, tokens: Sequence[int], start: int, end: int
    ) -> tuple[tuple[int, ...], int] | None:
        """Look for the tail that a text goes on from.

        Args:
            before: Key of the text's first pages.
            tokens: The text.
            start: Position behind these pages.
            end: Position of the first token behind them that is to be computed in any case.

        Returns:
            The tokens of the tail, and how many of them the text goes on with: half or more.
        """
        tails = self._behind.get(before)
        if tails is None:
            return None
        wanted = tuple(tokens[start:end])
        place = bisect_left(tails, wanted)
        common = max(num_common(tail, wanted) for tail in tails[max(place - 1, 0) : place + 1])
        # Of those with as much one that is short: least of it is lost to others.
        first = bisect_left(tails, wanted[:common])
        some = tails[first : first + _LOOKED_AT]
        tail = min((tail for tail in some if tail[:common] == wanted[:common]), key=len)
        return (tail, common) if common and 2 * common >= len(tail) else None

    def keys(self) -> Iterator[tuple[int, bytes]]:
        """Pages, with what names their content in the first group of layers."""
        for page, (before, tokens) in self._of_page.items():
            yield page, next_block_hash(before, tokens)

    def check_integrity(self, page_size: int) -> None:
        """Prove that the tails that are found are those of pages; for tests.

        Raises:
            AssertionError: They are not.
        """
        found = {(before, tail) for before, tails in self._behind.items() for tail in tails}
        assert found <= {*self._of_page.values()}, "a tail has no page"
        assert len(found) == sum(map(len, self._behind.values())), "a tail is found twice"
        assert all(tails == sorted(tails) != [] for tails in self._behind.values())
        assert all(0 < len(tokens) < page_size for _, tokens in self._of_page.values())
