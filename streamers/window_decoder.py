"""Decode incrementally with a tokenizer of which only `decode` is known.

Each step decodes a window of the latest ids and returns the new text at its end. The window has
enough ids before the new ones that their text is the same as in the whole text. It is cut before it
grows, so the cost per token is constant.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


_CONTEXT = 8  # ids kept when the window is cut
_LIMIT = 24  # ids at which it is cut
_CHARACTER = 4  # a character is spread over no more tokens than it has bytes
# An ending that a clean-up of spaces may still rewrite when more text follows.
_CLEANED = re.compile(r" ('[vr]?|n'?)?\Z")


class WindowDecoder:
    """Slow path of `Detokenizer`: same results, a bounded number of decodes per token."""

    __slots__ = ("_cleaned", "_ids", "_kwargs", "_shown", "_stalled", "_tokenizer")

    def __init__(
        self, tokenizer: Any, decode_kwargs: dict[str, Any], prompt_ids: Sequence[int] = ()
    ) -> None:
        """Args:
        tokenizer: Anything with `decode(list of ids, **decode_kwargs)`.
        decode_kwargs: Passed on to each decode.
        prompt_ids: Ids before the first; their text is not returned.
        """
        self._tokenizer = tokenizer
        self._kwargs = decode_kwargs
        cleaned = decode_kwargs.get("clean_up_tokenization_spaces")
        if cleaned is None:
            cleaned = getattr(tokenizer, "clean_up_tokenization_spaces", False)
        self._cleaned = bool(cleaned)
        self._ids = list(prompt_ids[-_LIMIT:])
        self._shown = 0  # characters of the window's text that are out
        self._stalled = 0  # ids since the last character came out
        if self._ids:
            self._read_prompt(inside=len(self._ids) < len(prompt_ids))

    def put(self, token_ids: Sequence[int]) -> str:
        """Take ids; return the text that they complete."""
        parts = [
            self._extend(token_ids[i : i + _CONTEXT]) for i in range(0, len(token_ids), _CONTEXT)
        ]
        return "".join(parts)

    def flush(self) -> str:
        """Return what was held back."""
        text = self._decode(self._ids) if self._ids else ""
        new = text[self._shown :]
        self._shown = max(self._shown, len(text))
        self._stalled = 0
        return new

    def _read_prompt(self, inside: bool) -> None:
        """Begin after the complete characters of the prompt; the ids are its last ones.

        An incomplete character at either end may make all bytes near it look invalid. So the text
        is read without a few ids at the end, and some at the beginning are dropped.
        """
        ids = self._ids
        self._shown = len(self._decode(ids).rstrip("\ufffd"))
        for start in range(min(_CHARACTER, len(ids)) if inside else 1):
            for end in range(len(ids), max(len(ids) - _CHARACTER, start), -1):
                text = self._decode(ids[start:end])
                if not (text.endswith("\ufffd") or (inside and text.startswith("\ufffd"))):
                    self._ids = ids[start:]
                    seen = self._decode(self._ids).rstrip("\ufffd")
                    self._shown = max(len(text), len(seen))
                    return

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, **self._kwargs)
        return text

    def _extend(self, token_ids: Sequence[int]) -> str:
        self._ids = [*self._ids, *token_ids]  # never changed in place: a copy may share it
        text = self._decode(self._ids)
        certain = self._stable_length(text)
        if certain > self._shown:
            new = text[self._shown : certain]
            self._shown = certain
            self._stalled = 0
        else:
            new = ""
            self._stalled += len(token_ids)
        if len(self._ids) >= _LIMIT:
            self._cut(text)
        return new

    def _stable_length(self, text: str) -> int:
        """Return the length of the text that more ids will not change."""
        whole = text.rstrip("\ufffd")
        if len(whole) < len(text) and self._stalled >= _CHARACTER:
            # Too many for one character: all but the latest are invalid whatever follows.
            return len(text) - _CHARACTER + 1
        while self._cleaned and (ending := _CLEANED.search(whole)):
            whole = whole[: ending.start()]
        return len(whole)

    def _cut(self, text: str) -> None:
        """Drop the oldest ids, at a place where the rest decodes to the same text.

        Not inside a character: there some decoders show all bytes before it as invalid too.
        """
        whole = not text.endswith("\ufffd")
        for keep in range(_CONTEXT, _LIMIT - _CHARACTER) if whole else ():
            shorter = self._decode(self._ids[-keep:])
            gone = len(text) - len(shorter)
            if 0 <= gone <= self._shown and shorter and text.endswith(shorter):
                self._ids = self._ids[-keep:]
                self._shown -= gone
                return
        if len(self._ids) >= 2 * _LIMIT:
            # Nothing but invalid bytes: start afresh behind what is out.
            held = len(text) - self._shown
            self._ids = self._ids[-_CONTEXT:]
            self._shown = max(0, len(self._decode(self._ids)) - held)
