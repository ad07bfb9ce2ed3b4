"""Tool-call format of Gemma 4 and FunctionGemma: ``call:name{key:value, …}`` between markers.

The arguments are no JSON: keys have no quotes, and a text stands between two equal marks.
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
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse, TextScanner

_MOST_NESTED = 64
_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Words of Python that models write in the place of those of JSON."""


def _parse(scanner: TextScanner, calls: CallCollector, end: str, quote: str) -> IncrementalParse:
    calls.begin(scanner)
    yield from scanner.space()
    yield from scanner.expect("call:")
    name = yield from scanner.until("{")
    calls.name(name.strip())
    yield from _value(scanner, calls, quote, 0)
    calls.end()
    yield from scanner.space()
    yield from scanner.follows(end)


def _value(scanner: TextScanner, calls: CallCollector, quote: str, depth: int) -> IncrementalParse:
    """Parse one value, and write it as JSON."""
    if depth > _MOST_NESTED:
        raise MalformedCallError(f"arguments nested more than {_MOST_NESTED} deep")
    yield from scanner.space()
    is_text = yield from scanner.follows(quote)
    if is_text:
        calls.arguments('"')
        yield from scanner.stream_until(
            lambda text: calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1]), quote
        )
        scanner.skip(len(quote))
        calls.arguments('"')
        return
    first = yield from scanner.peek()
    if first in "{[":
        yield from _members(scanner, calls, quote, depth, "}" if first == "{" else "]")
        return
    text: str = yield from scanner.json_text()
    calls.arguments(_WORDS.get(text, text))


def _members(
    scanner: TextScanner, calls: CallCollector, quote: str, depth: int, closing: str
) -> IncrementalParse:
    """Parse an object or a list, from its bracket on."""
    calls.arguments(scanner.skip(1))
    is_first = True
    while True:
        yield from scanner.space()
        is_over = yield from scanner.follows(closing)
        if is_over:
            calls.arguments(closing)
            return
        if not is_first:
            yield from scanner.expect(",")
            yield from scanner.space()
            calls.arguments(", ")
        is_first = False
        if closing == "}":
            yield from scanner.follows(quote)
            key = yield from scanner.until(quote, ":")
            yield from scanner.follows(quote)
            yield from scanner.expect(":")
            calls.arguments(json.dumps(key.strip(), ensure_ascii=False) + ": ")
        yield from _value(scanner, calls, quote, depth + 1)


def _format(name: str, begin: str, end: str, quote: str) -> ToolFormat:
    parse = partial(_parse, end=end, quote=quote)
    syntax = CallSyntax(
        before=f"{begin}call:",
        between="",
        after=end,
        arguments=partial(write_arguments, quote=quote),
    )
    return ToolFormat(name, ((begin,),), begin, parse, syntax, markers=(end, quote))


FORMAT = _format("gemma", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION = _format("function_gemma", "<start_function_call>", "<end_function_call>", "<escape>")
