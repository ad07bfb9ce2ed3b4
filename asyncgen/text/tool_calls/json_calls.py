"""CallCollector whose arguments, or all of it, are JSON."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.text_scanner import MalformedCallError

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.formats import ReadCalls
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner

_ARGUMENTS = ("arguments", "parameters")


def read_object(cursor: TextScanner, calls: CallCollector) -> Reading:
    """Read a call such as ``{"name": …, "arguments": {…}}``, which has begun.

    The members may stand in any order; others than these two are left out.
    """
    yield from cursor.space()
    yield from cursor.expect("{")
    while True:
        yield from cursor.space()
        is_over = yield from cursor.follows("}")
        if is_over:
            calls.end()
            return
        key = _text(_loaded((yield from cursor.json_text())), "a key")
        yield from cursor.space()
        yield from cursor.expect(":")
        yield from cursor.space()
        if key == "name":
            calls.name(_text(_loaded((yield from cursor.json_text())), "the name"))
        elif key in _ARGUMENTS:
            yield from read_arguments(cursor, calls)
        else:
            yield from cursor.json_text()
        yield from cursor.space()
        yield from cursor.follows(",")


def read_arguments(cursor: TextScanner, calls: CallCollector) -> Reading:
    """Read arguments as JSON; also such that are JSON within a string of JSON."""
    yield from cursor.space()
    first = yield from cursor.peek()
    if first == '"':
        calls.arguments(_text(_loaded((yield from cursor.json_text())), "the arguments"))
    else:
        yield from cursor.json_value(calls.arguments)


def read_list(cursor: TextScanner, calls: CallCollector) -> Reading:
    """Read ``[{…}, {…}]``, each entry a call."""
    calls.begin(cursor)
    yield from cursor.space()
    yield from cursor.expect("[")
    while True:
        yield from read_object(cursor, calls)
        yield from cursor.space()
        goes_on = yield from cursor.follows(",")
        if not goes_on:
            break
        calls.begin(cursor)
    yield from cursor.expect("]")


def one_object(end: str) -> ReadCalls:
    """How one call in JSON is read; the marker that ends it may be missing."""
    return partial(_one_object, end=end)


def _one_object(cursor: TextScanner, calls: CallCollector, end: str) -> Reading:
    calls.begin(cursor)
    yield from read_object(cursor, calls)
    yield from cursor.space()
    yield from cursor.follows(end)


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"no JSON: {error}") from None


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise MalformedCallError(f"{what} is no text: {str(value)[:40]}")
    return value
