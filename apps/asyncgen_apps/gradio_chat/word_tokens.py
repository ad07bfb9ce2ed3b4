"""Words as the token ids that the model knows them by. Knows no panel and no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Encode: TypeAlias = Callable[[str], list[int]]
"""Turns a text into token ids, without special tokens."""


def banned(words: Sequence[str], encode: Encode) -> list[list[int]]:
    """Return ``bad_words_ids``: each word as it begins a text, and as it follows a space."""
    return [ids for word in words for ids in _spellings(word, encode)]


def required(words: Sequence[str], encode: Encode) -> list[list[list[int]]]:
    """Return ``force_words_ids``: for each word its spellings, of which one must appear."""
    return [_spellings(word, encode) for word in words]


def _spellings(word: str, encode: Encode) -> list[list[int]]:
    """The ways to write a word; none of them is the beginning of another, which says the same."""
    found: list[list[int]] = []
    for ids in sorted((encode(word.strip()), encode(f" {word.strip()}")), key=len):
        if ids and not any(ids[: len(other)] == other for other in found):
            found.append(ids)
    return found
