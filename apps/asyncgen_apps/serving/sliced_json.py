"""JSON that is long, parsed so that other threads hardly notice.

The usual parser is one call of C, in which no thread but its own runs: tenths of a second for a
few megabytes. Here every value is a turn of its own; only a text is still read at one blow, which
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
    """From a text and a place in it to the value that is there, and the place behind it."""

MOST_NESTED = 2**18
"""Most lists and objects of a text. Looking through more of them for garbage takes everybody's
time."""


class TooManyNested(ValueError):
    """More lists and objects than `MOST_NESTED`."""


def parse(content: bytes | str) -> object:
    """Parse JSON; a thread that works in slices gives way meanwhile.

    Args:
        content: In any encoding that JSON may have.

    Raises:
        TooManyNested: It holds too many lists and objects.
        ValueError: It is not JSON.
        RecursionError: It is nested too deep.
    """
    return json.loads(content, cls=_Decoder)


class _Decoder(json.JSONDecoder):
    """The standard decoder without its C, which calls back before each entry."""

    def __init__(self) -> None:
        super().__init__()
        standard: Any = decoder  # what is called here is not in its types
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
            return parse_object(start, strict, entries(scan), *more)

        self.parse_array = array
        self.parse_object = table
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]
