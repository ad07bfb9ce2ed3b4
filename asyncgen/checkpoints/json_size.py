"""Bound what JSON of a stranger takes once it is parsed, before that is done.

An empty list has two bytes in a file and sixty-four in memory; a text of which one letter is rare
has four bytes for each letter.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from asyncgen.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

MOST_LISTS: Final = 500_000
MOST_ENTRIES: Final = 2_000_000
"""Brackets and commas of a file, which cost memory whatever is between them. The largest indices of
weights have 220,000 entries."""

MOST_AS_TEXT: Final = 192 * 1024 * 1024
"""Bytes of a file as a text of Python; those of the largest tokenizers have 140 MB."""

_RARE: Final = re.compile(rb"[\xf0-\xff]")
_INNER: Final = bytes(range(0x80, 0xC0))
"""Bytes with which no letter of UTF-8 begins."""


def check_json(
    file: Path, content: str | bytes, lists: int = MOST_LISTS, entries: int = MOST_ENTRIES
) -> None:
    """Refuse JSON that would take gigabytes as lists and objects.

    Args:
        file: The file, for messages.
        content: Its content.
        lists: Most lists and objects.
        entries: Most commas.

    Raises:
        ModelLoadError: Says how many there are.
    """
    text = content if isinstance(content, str) else content.decode("latin-1")
    for what, found, most in (
        ("lists and objects", text.count("[") + text.count("{"), lists),
        ("entries", text.count(","), entries),
    ):
        if found > most:
            raise ModelLoadError(f"{file} has {found} {what}; at most {most} are read")


def check_letters(file: Path, content: bytes) -> None:
    """Refuse UTF-8 that would take too much memory as a text.

    Args:
        file: The file, for messages.
        content: Its content.

    Raises:
        ModelLoadError: Says how much it would take.
    """
    if 4 * len(content) <= MOST_AS_TEXT or content.isascii():
        return
    width = 4 if _RARE.search(content) else 2
    size = width * len(content.translate(None, _INNER))
    if size > MOST_AS_TEXT:
        raise ModelLoadError(
            f"{file} has letters that would take {size} bytes of memory; at most {MOST_AS_TEXT}"
        )
