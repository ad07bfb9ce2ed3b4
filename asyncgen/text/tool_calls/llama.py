"""Llama 3.1 to 3.3: ``{"name": …, "parameters": {…}}``, bare or behind ``<|python_tag|>``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.json_calls import read_object

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner


def _read(cursor: TextScanner, calls: CallCollector) -> Reading:
    calls.begin(cursor)
    while True:
        yield from read_object(cursor, calls)
        yield from cursor.space()
        goes_on = yield from cursor.follows(";")
        if not goes_on:
            return
        calls.begin(cursor)


FORMAT = ToolFormat(
    name="llama",
    signs=(("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')),
    begin="<|python_tag|>",
    read=_read,
    words=CallSyntax(before='{"name": "', between='", "parameters": ', after="}", separator="; "),
    bare=True,
)
