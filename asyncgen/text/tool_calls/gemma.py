"""Gemma 4, and FunctionGemma: ``call:name{key:value, …}`` between markers.

The arguments are no JSON: keys stand bare, and a text stands between two equal marks.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.gemma_grammar import write_arguments
from asyncgen.text.tool_calls.text_scanner import MalformedCallError

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner

_MOST_NESTED = 64


def _read(cursor: TextScanner, calls: CallCollector, end: str, quote: str) -> Reading:
    calls.begin(cursor)
    yield from cursor.space()
    yield from cursor.expect("call:")
    name = yield from cursor.until("{")
    calls.name(name.strip())
    yield from _value(cursor, calls, quote, 0)
    calls.end()
    yield from cursor.space()
    yield from cursor.follows(end)


def _value(cursor: TextScanner, calls: CallCollector, quote: str, depth: int) -> Reading:
    """Read one value, and write it as JSON."""
    if depth > _MOST_NESTED:
        raise MalformedCallError(f"arguments nested more than {_MOST_NESTED} deep")
    yield from cursor.space()
    is_text = yield from cursor.follows(quote)
    if is_text:
        calls.arguments('"')
        yield from cursor.stream_until(
            lambda text: calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1]), quote
        )
        cursor.skip(len(quote))
        calls.arguments('"')
        return
    first = yield from cursor.peek()
    if first in "{[":
        yield from _members(cursor, calls, quote, depth, "}" if first == "{" else "]")
        return
    yield from cursor.json_value(calls.arguments)


def _members(
    cursor: TextScanner, calls: CallCollector, quote: str, depth: int, closing: str
) -> Reading:
    """Read an object or a list, from its bracket on."""
    calls.arguments(cursor.skip(1))
    is_first = True
    while True:
        yield from cursor.space()
        is_over = yield from cursor.follows(closing)
        if is_over:
            calls.arguments(closing)
            return
        if not is_first:
            yield from cursor.expect(",")
            yield from cursor.space()
            calls.arguments(", ")
        is_first = False
        if closing == "}":
            yield from cursor.follows(quote)
            key = yield from cursor.until(quote, ":")
            yield from cursor.follows(quote)
            yield from cursor.expect(":")
            calls.arguments(json.dumps(key.strip(), ensure_ascii=False) + ": ")
        yield from _value(cursor, calls, quote, depth + 1)


def _format(name: str, begin: str, end: str, quote: str) -> ToolFormat:
    read = partial(_read, end=end, quote=quote)
    words = CallSyntax(
        before=f"{begin}call:",
        between="",
        after=end,
        arguments=partial(write_arguments, quote=quote),
    )
    return ToolFormat(name, ((begin,),), begin, read, words, markers=(end, quote))


FORMAT = _format("gemma", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION = _format("function_gemma", "<start_function_call>", "<end_function_call>", "<escape>")
