"""Tool-call formats with each argument between tags: GLM and Qwen Coder.

The arguments come out as a JSON object.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.argument_values import value_as_json
from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.tagged_grammar import Tags

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse, TextScanner

_QUOTES = re.compile(r'\\.|"', re.DOTALL)


def parse_tagged(
    scanner: TextScanner, calls: CallCollector, tags: Tags, end: str
) -> IncrementalParse:
    """Parse all arguments of a call, and the tag ``end`` behind them.

    The tool declares whether a value is a text; another one is read by its schema.
    """
    separator = "{"
    while True:
        yield from scanner.space()
        is_over = yield from scanner.follows(end)
        if is_over:
            break
        yield from scanner.expect(tags.before)
        first, *others = tags.between.split("\n")
        key = yield from scanner.until(first)
        yield from scanner.expect(first)
        for tag in others:
            yield from scanner.space()
            yield from scanner.expect(tag)
        calls.arguments(separator + json.dumps(key.strip()) + ": ")
        yield from _parse_value(scanner, calls, key.strip(), tags.end)
        separator = ", "
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def _parse_value(
    scanner: TextScanner, calls: CallCollector, key: str, end: str
) -> IncrementalParse:
    """Parse the value of an argument, and the tag ``end`` behind it."""
    yield from scanner.follows("\n")  # frames the value, and is no part of it
    if calls.is_string(key):
        calls.arguments('"')
        yield from scanner.stream_until(
            lambda text: calls.arguments(_escaped(text)), "\n" + end, end
        )
        calls.arguments('"')
    else:
        text = yield from scanner.until("\n" + end, end)
        while _ends_in_a_string(text):  # so the tag is a part of it
            text += scanner.skip(1)
            text += yield from scanner.until("\n" + end, end)
        calls.arguments(value_as_json(text, *calls.schema_of(key)))
    yield from scanner.follows("\n")
    yield from scanner.expect(end)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ends_in_a_string(text: str) -> bool:
    """Tell whether a value begins as JSON does, and stops within one of its strings."""
    if not text.lstrip().startswith(('"', "{", "[")):
        return False
    return _QUOTES.findall(text).count('"') % 2 == 1


_GLM_TAGS = Tags(
    "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", after="\n", is_framed=False
)


def _parse_glm(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    calls.begin(scanner)
    name = yield from scanner.until("<arg_key>", "</tool_call>")
    calls.name(name.strip())
    yield from parse_tagged(scanner, calls, _GLM_TAGS, "</tool_call>")


GLM = ToolFormat(
    name="glm",
    signs=(("<tool_call>", "<arg_key>", "<arg_value>"),),
    begin="<tool_call>",
    parse=_parse_glm,
    syntax=CallSyntax(
        before="<tool_call>",
        between="\n",
        after="</tool_call>",
        separator="\n",
        arguments=_GLM_TAGS.write,
    ),
    markers=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
"""GLM 4.5 and later: ``<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value>``."""

_QWEN_TAGS = Tags("<parameter=", ">", "</parameter>", after="\n", is_framed=True)


def _parse_qwen_coder(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    calls.begin(scanner)
    yield from scanner.space()
    yield from scanner.expect("<function=")
    name = yield from scanner.until(">")
    scanner.skip(1)
    calls.name(name.strip())
    yield from parse_tagged(scanner, calls, _QWEN_TAGS, "</function>")
    yield from scanner.space()
    yield from scanner.follows("</tool_call>")


QWEN_CODER = ToolFormat(
    name="qwen_coder",
    signs=(("<tool_call>", "<function=", "<parameter="),),
    begin="<tool_call>",
    parse=_parse_qwen_coder,
    syntax=CallSyntax(
        before="<tool_call>\n<function=",
        between=">\n",
        after="</function>\n</tool_call>",
        separator="\n",
        arguments=_QWEN_TAGS.write,
    ),
    markers=("</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
)
"""Qwen 3 Coder, Qwen 3.5: ``<tool_call><function=…><parameter=…>…</parameter></function>``."""
