"""Read the header of a safetensors file tensor by tensor, and check it as that library does.

The library, and `json` over a whole header, hold the interpreter for a second where a file has as
many tensors as the largest models; here other threads run meanwhile, and who waits for it may
leave. What is taken is what the library takes, without names and keys that are there twice.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncgen.runtime.wanted import require_wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of a number of each dtype of the format."""

_METADATA: Final = "__metadata__"
_LARGEST: Final = 2**64
_ASKED: Final = 4096
"""Tensors after which it is asked again whether somebody waits."""
_skip: Final = re.compile(r"[ \t\n\r]*").match


def _number(text: str) -> int | float:
    """Return a whole number; the format has no negative zero."""
    return -0.0 if text == "-0" else int(text)


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


_parse: Final = json.JSONDecoder(
    object_pairs_hook=tuple, parse_int=_number, parse_constant=_refuse
).raw_decode

_WHOLE: Final = "(?:0|[1-9][0-9]{0,18})"
_as_written: Final = re.compile(
    rf'\{{"dtype": ?"(\w+)", ?"shape": ?\[((?:{_WHOLE}(?:, ?{_WHOLE})*)?)\], ?'
    rf'"data_offsets": ?\[({_WHOLE}), ?({_WHOLE})\]\}}'
).match
"""A tensor as all known writers put it; whatever else is allowed goes through the parser."""


class Entry(NamedTuple):
    """A tensor as a header has it.

    Attributes:
        begin: First byte, from the end of the header.
        end: Byte behind its last one.
        name: Its name.
        kind: Dtype as the file spells it.
        shape: Its shape.
    """

    begin: int
    end: int
    name: str
    kind: str
    shape: tuple[int, ...]


def read_entries(header: bytes, size: int) -> tuple[list[Entry], dict[str, str]]:
    """Return the tensors of a header in the order of their bytes, and its metadata.

    Args:
        header: The header.
        size: Bytes of the file behind it.

    Raises:
        ValueError: The header is none, or its tensors are not all that is behind it, each once.
        RecursionError: A value of it is too deep.
        UnwantedError: Nobody waits any more.
    """
    entries: list[Entry] = []
    metadata: dict[str, str] = {}
    names: set[str] = set()
    for count, (name, value) in enumerate(_items(header.decode())):
        if count % _ASKED == 0:
            require_wanted()
        if name in names:
            raise ValueError(f"{name!r} is there twice")
        name.encode()  # a half of a pair of surrogates is no letter
        names.add(name)
        if name == _METADATA:
            metadata = _metadata(value)
        else:
            entries.append(_entry(name, value))
    entries.sort()
    place = 0
    for entry in entries:
        if entry.begin != place:
            raise ValueError(f"{entry.name!r} begins at byte {entry.begin}, {place} is the next")
        place = entry.end
    if place != size:
        raise ValueError(f"its tensors have {place} bytes, and the file {size} behind its header")
    return entries, metadata


def _items(text: str) -> Iterator[tuple[str, Any]]:
    """Parse a JSON object, one value after another.

    Objects in it become pairs; tensors as they are mostly written, a match of the expression.
    """
    place = _skip(text, _behind(text, 0, "{")).end()  # type: ignore[union-attr]
    is_over = text[place : place + 1] == "}"
    while not is_over:
        name, place = _parse(text, _behind(text, place, '"') - 1)
        place = _skip(text, _behind(text, place, ":")).end()  # type: ignore[union-attr]
        if (known := _as_written(text, place)) is not None:
            yield name, known
            place = known.end()
        else:
            value, place = _parse(text, place)
            yield name, value
        place = _skip(text, place).end()  # type: ignore[union-attr]
        is_over = text[place : place + 1] == "}"
        if not is_over:
            place = _behind(text, place, ",")
    if text[place + 1 :].strip(" \t\n\r"):
        raise ValueError(f"more behind its end, character {place + 1}")


def _behind(text: str, place: int, sign: str) -> int:
    """Return the place behind a sign that must come, after blanks."""
    if text[place : place + 1] != sign:
        place = _skip(text, place).end()  # type: ignore[union-attr]
        if text[place : place + 1] != sign:
            raise ValueError(f"{sign!r} must be at character {place}")
    return place + 1


def _object(name: str, value: object) -> dict[str, Any]:
    """Return what the pairs of an object are; the parser makes nothing else to tuples."""
    if not isinstance(value, tuple):
        raise ValueError(f"{name!r} is no object")
    found = dict(value)
    if len(found) != len(value):
        raise ValueError(f"{name!r} has a key twice")
    return found


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    found = _object(_METADATA, value)
    for name, text in found.items():
        if not isinstance(text, str):
            raise ValueError(f"{_METADATA!r} has values that are no texts")
        (name + text).encode()
    return found


def _entry(name: str, value: object) -> Entry:
    if isinstance(value, re.Match):
        kind, listed, first, last = value.groups()
        shape = tuple(map(int, listed.split(","))) if listed else ()
        return _checked(Entry(int(first), int(last), name, kind, shape))
    found = _object(name, value)
    kind = found.get("dtype")
    sides, place = _wholes(found.get("shape")), _wholes(found.get("data_offsets"))
    if not isinstance(kind, str) or sides is None or place is None or len(place) != 2:
        raise ValueError(f"{name!r} has no `dtype`, `shape` and two `data_offsets`, whole numbers")
    return _checked(Entry(*place, name, kind, sides))


def _checked(entry: Entry) -> Entry:
    """Refuse a tensor whose shape and dtype have another size than its bytes."""
    begin, end, name, kind, shape = entry
    bits = _BITS.get(kind)
    if bits is None:
        raise ValueError(f"{name!r} is {kind}, which the format does not have")
    for side in shape:
        bits *= side
        if bits >= _LARGEST:
            raise ValueError(f"{name!r} has more numbers than there can be")
    if bits != 8 * (end - begin):
        raise ValueError(f"{name!r} has {end - begin} bytes, and its shape and dtype {bits} bits")
    return entry


def _wholes(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers that the format can hold; ``None`` for anything else."""
    if not isinstance(value, list):
        return None
    is_whole = all(type(each) is int and 0 <= each < _LARGEST for each in value)
    return tuple(value) if is_whole else None
