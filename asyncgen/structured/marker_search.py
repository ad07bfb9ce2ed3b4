"""Search a growing text for the place where a format begins, and for tokens that run across it.

A format begins behind one of several markers, or with a text at the very beginning of the answer.
Knows bytes and ids alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

START = b"\xfe"
"""Byte before the first text of an answer, with which a marker may begin; none of UTF-8."""


class MarkerSearch:
    """Search for the beginning of a format; holds no state of a text."""

    def __init__(self, markers: Sequence[bytes], texts: Sequence[bytes], bare: bytes = b"") -> None:
        """Look through a vocabulary.

        Args:
            markers: The markers, none of them empty.
            texts: Text of each token, by its id.
            bare: Text with which the format may begin where nothing but white space is before it;
                a part of the format itself. Empty for none.
        """
        self._markers, self._bare = markers, bare
        self._most = max(map(len, markers)) - 1
        # By what of a marker stands before the token: ids, and the text of each behind the marker.
        self._found: dict[bytes, list[tuple[int, bytes]]] = {}
        self._begin_bare: list[tuple[int, bytes]] = []
        halves = [
            (marker[:place], marker[place:])
            for marker in markers
            for place in range(1, len(marker))
        ]
        endings = tuple({behind for _, behind in halves})
        for token_id, text in enumerate(texts):
            if bare and text.lstrip().startswith(bare):
                self._begin_bare.append((token_id, text.lstrip()))
            if any(marker in text for marker in markers):
                self._add(b"", token_id, self.split(b"", text)[1])
            if text.startswith(endings):
                for before, behind in halves:
                    if text.startswith(behind):
                        self._add(before, token_id, text[len(behind) :])

    def split(self, before: bytes, text: bytes) -> tuple[bytes, bytes | None]:
        """Search in a text that grows.

        Args:
            before: What the last call returned to keep; `START` at the beginning.
            text: The text that follows.

        Returns:
            What to keep of the text, and the text with which the format begins; ``None`` if no
            marker was found.
        """
        whole = before + text
        first = whole.removeprefix(START).lstrip() if whole.startswith(START) else b""
        if self._bare and first.startswith(self._bare):
            return b"", first
        found = [(whole.find(marker), len(marker)) for marker in self._markers]
        ends = [(place, place + length) for place, length in found if place >= 0]
        if ends:
            return b"", whole[min(ends)[1] :]
        kept = whole[max(0, len(whole) - self._most) :]
        if whole.startswith(START) and not first:
            kept = START + kept.removeprefix(START)  # white space of any length
        return kept, None

    def crossing(self, before: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield each token that begins the format and holds a part of it, with this part.

        Args:
            before: End of the text so far, as `split` returned it.
        """
        for ending, found in self._found.items():
            if before.endswith(ending):
                yield from found
        if before.startswith(START) and not before.removeprefix(START).strip():
            yield from self._begin_bare

    def _add(self, before: bytes, token_id: int, rest: bytes | None) -> None:
        if rest:
            self._found.setdefault(before, []).append((token_id, rest))
