"""Tool-call formats with JSON arguments: Qwen, Granite, Llama, Mistral and DeepSeek.

More of them, which need no parser of their own, stand in `json_envelopes`.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.text_scanner import MalformedCallError

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.formats import ParseCalls
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse, TextScanner

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_IDS = ("id", "type", "index", "call_id", "tool_call_id")
"""Members that say nothing to a reader, since a call gets an id of its own."""
_LONGEST_ID = 128


def parse_object(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    """Parse a call such as ``{"name": …, "arguments": {…}}``, which has begun.

    The members may stand in any order. Numbers and names of the call are ignored; another member
    would be lost, so the call is malformed.
    """
    yield from scanner.space()
    yield from scanner.expect("{")
    while True:
        yield from scanner.space()
        is_over = yield from scanner.follows("}")
        if is_over:
            calls.end()
            return
        key = loads_text((yield from scanner.json_text()), "a key")
        yield from scanner.space()
        yield from scanner.expect(":")
        yield from scanner.space()
        if key in _NAMES:
            calls.name(loads_text((yield from scanner.json_text()), "the name"))
        elif key in _ARGUMENTS:
            yield from parse_arguments(scanner, calls)
        elif key in _IDS:
            text = yield from scanner.json_text()
            _check_id(key, str(_loaded(text)))
        else:
            raise MalformedCallError(f"{key!r} is no member of a call")
        yield from scanner.space()
        yield from scanner.follows(",")


def _check_id(key: str, text: str) -> None:
    """Refuse a text that is no id: it would be lost."""
    if len(text) > _LONGEST_ID or re.search(r"[\s{\[]", text):
        raise MalformedCallError(f"{key!r} of a call is {text[:_LONGEST_ID]}")


def parse_arguments(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    """Parse arguments as JSON, or as JSON within a string of JSON."""
    yield from scanner.space()
    first = yield from scanner.peek()
    if first == '"':
        calls.arguments(loads_text((yield from scanner.json_text()), "the arguments"))
    else:
        yield from scanner.json_value(calls.arguments)


def parse_list(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    """Parse ``[{…}, {…}]``, each entry a call."""
    calls.begin(scanner)
    yield from scanner.space()
    yield from scanner.expect("[")
    yield from parse_entries(scanner, calls)


def parse_entries(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    """Parse ``{…}, {…}]`` behind the bracket; the first call has begun."""
    while True:
        yield from parse_object(scanner, calls)
        yield from scanner.space()
        goes_on = yield from scanner.follows(",")
        if not goes_on:
            break
        calls.begin(scanner)
    yield from scanner.expect("]")


def loads_text(text: str, what: str) -> str:
    """Return the string that a text of JSON stands for; ``what`` names it in errors."""
    value = _loaded(text)
    if not isinstance(value, str):
        raise MalformedCallError(f"{what} is no text: {str(value)[:40]}")
    return value


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"no JSON: {error}") from None


def parse_objects(scanner: TextScanner, calls: CallCollector, end: str) -> IncrementalParse:
    """Parse calls in a list, or one after the other; the marker ``end`` may be missing."""
    calls.begin(scanner)
    yield from scanner.space()
    is_list = yield from scanner.follows("[")
    if is_list:
        yield from parse_entries(scanner, calls)
    else:
        yield from parse_object(scanner, calls)
    yield from scanner.space()
    while not is_list and scanner.rest.startswith("{"):
        calls.begin(scanner)
        yield from parse_object(scanner, calls)
        yield from scanner.space()
    yield from scanner.follows(end)


QWEN = ToolFormat(
    name="qwen",
    signs=(("<tool_call>",),),
    begin="<tool_call>",
    parse=partial(parse_objects, end="</tool_call>"),
    syntax=CallSyntax(
        before='<tool_call>\n{"name": "',
        between='", "arguments": ',
        after="}\n</tool_call>",
        separator="\n",
    ),
    markers=("</tool_call>",),
)
"""Qwen 2.5 and 3, Hermes, Granite 4, SmolLM 3: ``<tool_call>{…}</tool_call>``."""

GRANITE = ToolFormat(
    name="granite",
    signs=(("<|tool_call|>",),),
    begin="<|tool_call|>",
    parse=parse_list,
    syntax=CallSyntax(
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        opening="<|tool_call|>[",
        separator=", ",
        closing="]",
    ),
    markers=("<tool_call>",),
    others=("<tool_call>",),
)
"""Granite 3: ``<|tool_call|>[{…}]``. Granite 3.1 writes ``<tool_call>[{…}]``, though its template
tells of the other marker. (Granite 4 uses the format of Qwen.)"""


def _parse_llama(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    calls.begin(scanner)
    while True:
        yield from parse_object(scanner, calls)
        yield from scanner.space()
        goes_on = yield from scanner.follows(";")
        if not goes_on:
            return
        calls.begin(scanner)


LLAMA = ToolFormat(
    name="llama",
    signs=(("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')),
    begin="<|python_tag|>",
    parse=_parse_llama,
    syntax=CallSyntax(before='{"name": "', between='", "parameters": ', after="}", separator="; "),
    bare=True,
)
"""Llama 3.1 to 3.3: ``{"name": …, "parameters": {…}}``, bare or behind ``<|python_tag|>``."""


def _parse_mistral(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    yield from scanner.space()
    first = yield from scanner.peek()
    if first == "[":
        yield from parse_list(scanner, calls)
        return
    calls.begin(scanner)
    name = yield from scanner.until("[ARGS]", "[CALL_ID]", "{")
    calls.name(name.strip())
    has_id = yield from scanner.follows("[CALL_ID]")
    if has_id:
        _check_id("CALL_ID", (yield from scanner.until("[ARGS]", "{")))
    yield from scanner.follows("[ARGS]")
    yield from parse_arguments(scanner, calls)
    calls.end()


MISTRAL_LIST = ToolFormat(
    name="mistral_list",
    signs=(("[TOOL_CALLS]",),),
    begin="[TOOL_CALLS]",
    parse=_parse_mistral,
    syntax=CallSyntax(
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        opening="[TOOL_CALLS][",
        separator=", ",
        closing="]",
    ),
    markers=("[ARGS]", "[CALL_ID]"),
)
"""Mistral's templates of 2024: ``[TOOL_CALLS][{…}]``."""

MISTRAL = ToolFormat(
    name="mistral",
    signs=(("[TOOL_CALLS]", "[ARGS]"),),
    begin="[TOOL_CALLS]",
    parse=_parse_mistral,
    syntax=CallSyntax(before="[TOOL_CALLS]", between="[ARGS]", after=""),
    markers=("[ARGS]", "[CALL_ID]"),
)
"""Mistral's templates since 2025: ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

_OPENING, _CLOSING = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEFORE, _SEPARATOR, _AFTER = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_MARKERS = (_CLOSING, _BEFORE, _SEPARATOR, _AFTER)


def parse_section(
    scanner: TextScanner, calls: CallCollector, *, one: ParseCalls, closing: str
) -> IncrementalParse:
    """Parse calls one after the other, up to the end of their section or of the answer.

    Args:
        scanner: Text behind the marker that opens the section.
        calls: Takes the calls.
        one: Parses one call, from its first marker to its last.
        closing: Marker that ends the section.
    """
    is_over = False
    while not is_over:
        calls.begin(scanner)
        yield from scanner.space()
        yield from one(scanner, calls)
        yield from scanner.space()
        is_over = yield from scanner.follows(closing)
        is_over = is_over or scanner.is_complete and not scanner.rest


def _parse_deepseek_call(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    yield from scanner.expect(_BEFORE)
    name = yield from scanner.until(_SEPARATOR)
    yield from scanner.expect(_SEPARATOR)
    is_fenced = name.strip() == "function"  # V3 and R1 write the kind of tool first
    if is_fenced:
        name = yield from scanner.until("\n")
    calls.name(name.strip())
    if is_fenced:
        yield from scanner.space()
        yield from scanner.expect("```json")
    yield from parse_arguments(scanner, calls)
    calls.end()
    yield from scanner.space()
    if is_fenced:
        yield from scanner.follows("```")
        yield from scanner.space()
    yield from scanner.follows(_AFTER)


_parse_deepseek = partial(parse_section, one=_parse_deepseek_call, closing=_CLOSING)


DEEPSEEK_FENCED = ToolFormat(
    name="deepseek_fenced",
    signs=((_OPENING, "```json"),),
    begin=_OPENING,
    parse=_parse_deepseek,
    syntax=CallSyntax(
        before=f"{_BEFORE}function{_SEPARATOR}",
        between="\n```json\n",
        after=f"\n```{_AFTER}",
        opening=_OPENING,
        separator="\n",
        closing=_CLOSING,
    ),
    markers=_MARKERS,
)
"""DeepSeek V3 and R1: calls between ``<｜tool▁calls▁begin｜>`` and its end, in code fences."""

DEEPSEEK = ToolFormat(
    name="deepseek",
    signs=((_OPENING,),),
    begin=_OPENING,
    parse=_parse_deepseek,
    syntax=CallSyntax(
        before=_BEFORE, between=_SEPARATOR, after=_AFTER, opening=_OPENING, closing=_CLOSING
    ),
    markers=_MARKERS,
)
"""DeepSeek V3.1: the same without fences."""
