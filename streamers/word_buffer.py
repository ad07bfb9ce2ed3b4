"""Hold text back until whole words are there, as the documented streamers do."""

from __future__ import annotations

# CJK ideographs are words by themselves: the unified ideographs with their extensions A to E, and
# the compatibility ideographs with their supplement (Unicode, "CJK Unified Ideographs").
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class WordBuffer:
    """Buffer that passes text up to its last space, newline or CJK ideograph.

    Cost is linear in the text: held text has no such place, so only new text is searched.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[str] = []

    def put(self, text: str) -> str:
        """Take text; return the finished text, with the held text before it."""
        end = _word_end(text)
        if not end:
            if text:
                self._held.append(text)
            return ""
        finished = "".join([*self._held, text[:end]])
        self._held = [text[end:]] if end < len(text) else []
        return finished

    def flush(self) -> str:
        """Return the held text: the text ends here."""
        held, self._held = "".join(self._held), []
        return held


def _word_end(text: str) -> int:
    """Return the index after the last character that ends a word, 0 if there is none."""
    end = max(text.rfind(" "), text.rfind("\n")) + 1
    if text.isascii():
        return end
    for i in range(len(text), end, -1):
        if _is_ideograph(ord(text[i - 1])):
            return i
    return end


def _is_ideograph(code: int) -> bool:
    return any(low <= code <= high for low, high in _IDEOGRAPHS)
