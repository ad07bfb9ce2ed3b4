"""DeepSeek V3, R1 and V3.1: calls between ``<｜tool▁calls▁begin｜>`` and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.json_calls import read_arguments

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner

_OPENING, _CLOSING = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEFORE, _SEPARATOR, _AFTER = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_MARKERS = (_CLOSING, _BEFORE, _SEPARATOR, _AFTER)


def _read(cursor: TextScanner, calls: CallCollector) -> Reading:
    calls.begin(cursor)
    while True:
        yield from cursor.space()
        yield from cursor.expect(_BEFORE)
        name = yield from cursor.until(_SEPARATOR)
        yield from cursor.expect(_SEPARATOR)
        is_fenced = name.strip() == "function"  # V3 and R1 tell the kind of tool first
        if is_fenced:
            name = yield from cursor.until("\n")
        calls.name(name.strip())
        if is_fenced:
            yield from cursor.space()
            yield from cursor.expect("```json")
        yield from read_arguments(cursor, calls)
        calls.end()
        yield from cursor.space()
        if is_fenced:
            yield from cursor.follows("```")
            yield from cursor.space()
        yield from cursor.follows(_AFTER)
        yield from cursor.space()
        is_over = yield from cursor.follows(_CLOSING)
        if is_over or (cursor.is_complete and not cursor.rest):
            return
        calls.begin(cursor)


FENCED = ToolFormat(
    name="deepseek_fenced",
    signs=((_OPENING, "```json"),),
    begin=_OPENING,
    read=_read,
    words=CallSyntax(
        before=f"{_BEFORE}function{_SEPARATOR}",
        between="\n```json\n",
        after=f"\n```{_AFTER}",
        opening=_OPENING,
        separator="\n",
        closing=_CLOSING,
    ),
    markers=_MARKERS,
)
"""As V3 and R1 write it."""

FORMAT = ToolFormat(
    name="deepseek",
    signs=((_OPENING,),),
    begin=_OPENING,
    read=_read,
    words=CallSyntax(
        before=_BEFORE, between=_SEPARATOR, after=_AFTER, opening=_OPENING, closing=_CLOSING
    ),
    markers=_MARKERS,
)
