"""Qwen 3 Coder, Qwen 3.5: ``<tool_call><function=…><parameter=…>…</parameter></function>``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.tagged_calls import TaggedArguments
from asyncgen.text.tool_calls.tagged_grammar import Tags

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import Reading, TextScanner


def _read(cursor: TextScanner, calls: CallCollector) -> Reading:
    calls.begin(cursor)
    yield from cursor.space()
    yield from cursor.expect("<function=")
    name = yield from cursor.until(">")
    cursor.skip(1)
    calls.name(name.strip())
    arguments = TaggedArguments(cursor, calls)
    while True:
        yield from cursor.space()
        is_over = yield from cursor.follows("</function>")
        if is_over:
            break
        yield from cursor.expect("<parameter=")
        key = yield from cursor.until(">")
        cursor.skip(1)
        yield from arguments.read(key.strip(), "</parameter>")
    arguments.close()
    yield from cursor.space()
    yield from cursor.follows("</tool_call>")


_TAGS = Tags("<parameter=", ">", "</parameter>", after="\n", is_framed=True)

FORMAT = ToolFormat(
    name="qwen_coder",
    signs=(("<function=", "<parameter="),),
    begin="<tool_call>",
    read=_read,
    words=CallSyntax(
        before="<tool_call>\n<function=",
        between=">\n",
        after="</function>\n</tool_call>",
        separator="\n",
        arguments=_TAGS.write,
    ),
    markers=("</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
)
