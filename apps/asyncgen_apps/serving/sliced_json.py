"""Parse long JSON without blocking other threads.

The standard parser is one call of C, during which no other thread runs: tenths of a second for a
few megabytes. This one may pause after every value. Only a single text is read in one call, which
takes milliseconds.
"""

from __future__ import annotations

import json
from json import decoder, scanner
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.time_slices import give_way

if TYPE_CHECKING:
    from collections.abc import Callable

    Scan = Callable[[str, int], tuple[Any, int]]
    """Function of a text and a position that returns the value there and the position after it."""

MOST_NESTED = 2**18
"""Most lists and objects of a text: with more of them, garbage collection slows all threads."""


_MOST_SHOWN = 100
"""Characters of a key in an error."""


class TooManyNested(ValueError):
    """Raised for more lists and objects than `MOST_NESTED`."""


class RepeatedKeyError(json.JSONDecodeError):
    """Raised for an object with a key twice, of which readers take one or the other."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its entries, as an `object_pairs_hook`.

    Raises:
        RepeatedKeyError: A key is there twice; names it.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RepeatedKeyError(f"`{shown_key(name)}` is twice in one object", "", 0)
            seen.add(name)
    return found


def decoded(content: bytes | str) -> str:
    """Return the text of JSON, with or without a byte order mark.

    The standard parser also takes UTF-16 and UTF-32; here JSON has the one encoding that its
    standard has, so that all who read a body see the same text.

    Raises:
        UnicodeDecodeError: It is not UTF-8.
        ValueError: It has zero bytes, as other encodings have.
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig")
    if isinstance(content, bytes) and "\0" in text:
        raise json.JSONDecodeError("not in UTF-8", "", 0)
    return text


def shown_key(name: str) -> str:
    """Shorten a key of a client for an error: it may be as long as its message."""
    return name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}…"


def parse(content: bytes | str) -> object:
    """Parse JSON; a thread that works in time slices pauses meanwhile.

    Args:
        content: Text, or its bytes in UTF-8.

    Raises:
        RepeatedKeyError: An object has a key twice.
        TooManyNested: It holds too many lists and objects.
        ValueError: It is not JSON, or a text in it has half a surrogate pair, which is no
            character.
        RecursionError: It is nested too deep.
    """
    return json.loads(decoded(content), cls=_Decoder)


def _check_text(text: str, start: tuple[str, int]) -> None:
    """Refuse half of a surrogate pair, as parsers of bytes do."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise json.JSONDecodeError("half of a surrogate pair", *start) from error


class _Decoder(json.JSONDecoder):
    """Standard decoder in pure Python, which calls `give_way` before each entry."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=unique_keys)
        standard: Any = decoder  # its types lack these functions
        parse_array, parse_object = standard.JSONArray, standard.JSONObject
        left = MOST_NESTED

        def entries(scan: Scan) -> Scan:
            nonlocal left
            left -= 1
            if left < 0:
                raise TooManyNested(f"it holds more than {MOST_NESTED} lists and objects")

            def entry(text: str, place: int) -> tuple[Any, int]:
                give_way()
                return scan(text, place)

            return entry

        def array(start: tuple[str, int], scan: Scan) -> Any:
            return parse_array(start, entries(scan))

        def table(start: tuple[str, int], strict: bool, scan: Scan, *more: Any) -> Any:
            found, end = parse_object(start, strict, entries(scan), *more)
            for name in found:
                _check_text(name, start)
            return found, end

        def text(content: str, place: int, strict: bool = True) -> tuple[str, int]:
            found, end = standard.scanstring(content, place, strict)
            _check_text(found, (content, place))
            return found, end

        self.parse_string = text

        self.parse_array = array
        self.parse_object = table
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]
