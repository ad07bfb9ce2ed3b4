"""Qwen 2.5 and 3, Hermes, Granite 4, SmolLM 3: ``<tool_call>{…}</tool_call>``."""

from __future__ import annotations

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.json_calls import one_object

FORMAT = ToolFormat(
    name="qwen",
    signs=(("<tool_call>",),),
    begin="<tool_call>",
    read=one_object("</tool_call>"),
    words=CallSyntax(
        before='<tool_call>\n{"name": "',
        between='", "arguments": ',
        after="}\n</tool_call>",
        separator="\n",
    ),
    markers=("</tool_call>",),
)
