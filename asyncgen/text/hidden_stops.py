"""Search stop strings that contain special tokens in a text that hides these tokens.

A special token in a stop string, such as ``<|im_end|>``, has no text where special tokens are left
out. So the searched text gets a character that no text has at its place, and loses it again before
it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamers import StopStrings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncgen.text.tokenizer import Tokenizer

_FIRST_MARK: Final = 0x10FFFD
"""Last character for private use; further marks lie before it."""


class HiddenStops(StopStrings):
    """Stop strings that may contain hidden special tokens.

    Attributes:
        marks: Character to put into the text for each special token, by id.
    """

    def __init__(self, stops: Sequence[str], texts: Mapping[int, str]) -> None:
        """Make the search.

        Args:
            stops: The stop strings.
            texts: Text of each special token in them, by id.
        """
        marks = {token: chr(_FIRST_MARK - place) for place, token in enumerate(texts)}
        longest_first = sorted(texts, key=lambda token: -len(texts[token]))
        marked = {}
        for stop in stops:
            found = stop
            for token in longest_first:
                found = found.replace(texts[token], marks[token])
            marked[found] = stop
        super().__init__([*stops, *(each for each in marked if each not in stops)])
        self.marks = marks
        self._stops = marked
        self._removed = dict.fromkeys(map(ord, marks.values()))

    def put(self, text: str) -> tuple[str, str | None]:
        """Take more text with marks; return it without them."""
        shown, stop = super().put(text)
        return shown.translate(self._removed), None if stop is None else self._stops.get(stop, stop)

    def flush(self) -> str:
        """Return the text that is held back, without marks."""
        return super().flush().translate(self._removed)


def make_stops(stops: Sequence[str], tokenizer: Tokenizer | None, *, hides: bool) -> StopStrings:
    """Make the search for stop strings.

    Args:
        stops: The stop strings.
        tokenizer: Tokenizer of the text.
        hides: The text leaves out special tokens.
    """
    texts: dict[int, str] = {}
    if hides and tokenizer is not None:
        for stop in stops:
            texts |= _special_tokens(stop, tokenizer)
    return HiddenStops(stops, texts) if texts else StopStrings(stops)


def _special_tokens(stop: str, tokenizer: Tokenizer) -> dict[int, str]:
    """Return the special tokens in a stop string by id."""
    found = {}
    for token in tokenizer.encode_ids(stop, add_special_tokens=False):
        text = tokenizer.decode([token])
        if text and text in stop and not tokenizer.decode([token], skip_special_tokens=True):
            found[token] = text
    return found
