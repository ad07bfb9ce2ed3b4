"""Find the tokens that end a marker and hold text behind it.

A grammar that begins behind a marker must allow that text, too. Knows bytes and ids alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class MarkerCrossings:
    """Tokens that run across the end of a marker."""

    def __init__(self, marker: bytes, texts: Sequence[bytes]) -> None:
        """Look through a vocabulary.

        Args:
            marker: The marker, not empty.
            texts: Text of each token, by its id.
        """
        self._marker = marker
        # By the number of characters of the marker that stand before the token: ids, and the text
        # of each behind the marker.
        self._found: dict[int, list[tuple[int, bytes]]] = {}
        firsts = set(marker)
        for token_id, text in enumerate(texts):
            place = text.find(marker)
            if place >= 0:
                self._add(0, token_id, text[place + len(marker) :])
            elif text and text[0] in firsts:
                for before in range(1, len(marker)):
                    if text.startswith(marker[before:]):
                        self._add(before, token_id, text[len(marker) - before :])

    def behind(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield each token that ends the marker behind a text, with its own text behind that.

        Args:
            text: End of the text so far, without the marker.
        """
        for before, found in self._found.items():
            if text.endswith(self._marker[:before]):
                yield from found

    def _add(self, before: int, token_id: int, rest: bytes) -> None:
        if rest:
            self._found.setdefault(before, []).append((token_id, rest))
