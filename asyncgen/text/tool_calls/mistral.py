"""Mistral: ``[TOOL_CALLS][{…}]``, and since 2025 ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.json_calls import read_arguments, read_list

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner

_MARKER = "[TOOL_CALLS]"


def _read(cursor: TextScanner, calls: CallCollector) -> Reading:
    yield from cursor.space()
    first = yield from cursor.peek()
    if first == "[":
        yield from read_list(cursor, calls)
        return
    calls.begin(cursor)
    name = yield from cursor.until("[ARGS]", "[CALL_ID]", "{")
    calls.name(name.strip())
    has_id = yield from cursor.follows("[CALL_ID]")
    if has_id:
        yield from cursor.until("[ARGS]", "{")
    yield from cursor.follows("[ARGS]")
    yield from read_arguments(cursor, calls)
    calls.end()


LIST = ToolFormat(
    name="mistral_list",
    signs=(("[TOOL_CALLS]",),),
    begin=_MARKER,
    read=_read,
    words=CallSyntax(
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        opening="[TOOL_CALLS][",
        separator=", ",
        closing="]",
    ),
    markers=("[ARGS]", "[CALL_ID]"),
)
"""As the templates of 2024 write it."""

FORMAT = ToolFormat(
    name="mistral",
    signs=(("[TOOL_CALLS]", "[ARGS]"),),
    begin=_MARKER,
    read=_read,
    words=CallSyntax(before="[TOOL_CALLS]", between="[ARGS]", after=""),
    markers=("[ARGS]", "[CALL_ID]"),
)
