"""GLM 4.5 and later: ``<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value>``."""

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
    name = yield from cursor.until("<arg_key>", "</tool_call>")
    calls.name(name.strip())
    arguments = TaggedArguments(cursor, calls)
    while True:
        yield from cursor.space()
        is_over = yield from cursor.follows("</tool_call>")
        if is_over:
            break
        yield from cursor.expect("<arg_key>")
        key = yield from cursor.until("</arg_key>")
        yield from cursor.expect("</arg_key>")
        yield from cursor.space()
        yield from cursor.expect("<arg_value>")
        yield from arguments.read(key.strip(), "</arg_value>")
    arguments.close()


_TAGS = Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", after="\n", is_framed=False)

FORMAT = ToolFormat(
    name="glm",
    signs=(("<arg_key>", "<arg_value>"),),
    begin="<tool_call>",
    read=_read,
    words=CallSyntax(
        before="<tool_call>",
        between="\n",
        after="</tool_call>",
        separator="\n",
        arguments=_TAGS.write,
    ),
    markers=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
