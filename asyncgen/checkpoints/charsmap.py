"""Read SentencePiece's rules of normalisation in their binary form (``precompiled_charsmap``).

That is the size of a tree, the tree as an array of 32-bit units (darts-clone), and the new texts,
each with a 0 behind it. The library that applies them trusts all of it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from asyncgen.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rules; those of NFKC have 240,000."""

_BLOCK: Final = 256 * 4
"""Bytes of a block of units: a child lies in the block that its parent names."""

_INSIDE: Final = frozenset(bytes([each]) for each in range(0x80, 0xC0))
"""Bytes of UTF-8 with which no letter begins."""


def check_charsmap(place: Path | str, charsmap: bytes) -> None:
    """Refuse rules over which the library would give up, or ask for memory that they do not need.

    Args:
        place: The file, for messages.
        charsmap: The rules.

    Raises:
        ModelLoadError: Says what is wrong with them.
    """
    trouble = _trouble(charsmap)
    if trouble is not None:
        raise ModelLoadError(f"{place}: its `precompiled_charsmap` is broken: {trouble}")


def _trouble(charsmap: bytes) -> str | None:
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) > MOST_BYTES:
        return f"it has {len(charsmap)} bytes; at most {MOST_BYTES} are read"
    if size < _BLOCK or size % 4 or size > len(charsmap) - 4:
        return f"its tree should have {size} bytes; behind its size are {max(0, len(charsmap) - 4)}"
    units, texts = _parted(charsmap)
    try:
        texts.decode()
    except UnicodeDecodeError as error:
        return f"its texts are no UTF-8 ({error})"
    for place, base, _depth in _walk(units):
        if base | 255 >= len(units):
            return f"a branch of its tree leads to unit {base} of {len(units)}"
        start = _start(units, base)
        if units[place] & 256 and place and not _is_text(texts, start):
            return f"a text should begin at byte {start} of {len(texts)}"
    return None


def charsmap_growth(charsmap: bytes) -> float:
    """Return how many times longer the rules make a text at most, in bytes of UTF-8.

    Args:
        charsmap: The rules.
    """
    size = int.from_bytes(charsmap[:4], "little")
    if min(size, len(charsmap) - 4) < 4:
        return 1.0  # no rules, or none that the library reads
    units, texts = _parted(charsmap)
    most = 1.0
    for place, base, depth in _walk(units):
        if units[place] & 256 and depth and base < len(units):
            start = _start(units, base)
            end = texts.find(0, start)
            most = max(most, ((len(texts) if end < 0 else end) - start) / depth)
    return most


def _parted(charsmap: bytes) -> tuple[Sequence[int], bytes]:
    """Return the units of the tree, and the texts."""
    size = int.from_bytes(charsmap[:4], "little")
    units = struct.unpack_from(f"<{min(size, len(charsmap) - 4) // 4}I", charsmap, 4)
    return units, charsmap[4 + size :]


def _start(units: Sequence[int], base: int) -> int:
    return units[base] & 0x7FFF_FFFF


def _is_text(texts: bytes, start: int) -> bool:
    """Tell whether a text may begin there: not inside a letter."""
    return start <= len(texts) and texts[start : start + 1] not in _INSIDE


def _walk(units: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the branches that can be reached: place, unit of the value, and bytes that lead there.

    Ends of words share their part of the tree: a part counts where it is met first.
    """
    below: dict[int, list[int]] = {}
    for place, unit in enumerate(units):
        label = unit & 0x8000_00FF
        if 0 < label < 256:
            below.setdefault(place ^ label, []).append(place)
    found: list[tuple[int, int, int]] = []
    level, depth, seen = [0], 0, {0}
    while level:
        bases = [place ^ ((units[place] >> 10) << ((units[place] & 512) >> 6)) for place in level]
        found += [(place, base, depth) for place, base in zip(level, bases, strict=True)]
        children = {child for base in bases for child in below.get(base, ())}
        level, depth = sorted(children - seen), depth + 1
        seen |= children
    return found
