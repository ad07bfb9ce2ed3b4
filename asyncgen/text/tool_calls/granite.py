"""Granite 3: ``<|tool_call|>[{…}]``. (Granite 4 writes as Qwen does.)"""

from __future__ import annotations

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.json_calls import read_list

FORMAT = ToolFormat(
    name="granite",
    signs=(("<|tool_call|>",),),
    begin="<|tool_call|>",
    read=read_list,
    words=CallSyntax(
        before='{"name": "',
        between='", "arguments": ',
        after="}",
        opening="<|tool_call|>[",
        separator=", ",
        closing="]",
    ),
)
