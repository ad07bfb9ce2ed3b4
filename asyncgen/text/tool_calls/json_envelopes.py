"""Tool-call formats that are JSON between two markers, one declaration each."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.json_formats import (
    loads_text,
    parse_arguments,
    parse_entries,
    parse_objects,
    parse_section,
)
from asyncgen.text.tool_calls.text_scanner import MalformedCallError

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse, TextScanner

_BETWEEN = '", "arguments": '


def _list_between(
    name: str,
    begin: str,
    end: str = "",
    *,
    signs: tuple[str, ...] = (),
    before: str = '{"name": "',
    between: str = _BETWEEN,
) -> ToolFormat:
    """Declare a format that writes all calls as one list of JSON.

    Args:
        name: Name of the format.
        begin: Marker before the list.
        end: Marker after it.
        signs: Texts that tell it in a template; empty for the first marker.
        before: Text before the name of a call.
        between: Text between its name and its arguments.
    """
    return ToolFormat(
        name=name,
        signs=(signs or (begin,),),
        begin=begin,
        parse=partial(parse_objects, end=end),
        syntax=CallSyntax(
            before, between, "}", opening=f"{begin}[", separator=", ", closing=f"]{end}"
        ),
        markers=(end,) if end else (),
    )


APRIEL = _list_between("apriel", "<tool_calls>", "</tool_calls>", signs=("<tool_calls>[",))
"""Apriel and Hunyuan A13B: ``<tool_calls>[{…}]</tool_calls>``."""

NEMOTRON = _list_between("nemotron", "<TOOLCALL>", "</TOOLCALL>")
"""Nemotron Nano 2, Llama Nemotron: ``<TOOLCALL>[{…}]</TOOLCALL>``."""

COMMAND_R = _list_between(
    "command_r",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    before='{"tool_call_id": "0", "tool_name": "',
    between='", "parameters": ',
)
"""Command R7B, Command A: ``<|START_ACTION|>[{"tool_name": …, "parameters": …}]``."""

MINIMAX_M1 = ToolFormat(
    name="minimax_m1",
    signs=(("<tool_calls>", "</tool_calls>"),),
    begin="<tool_calls>",
    parse=partial(parse_objects, end="</tool_calls>"),
    syntax=CallSyntax(
        before='{"name": "',
        between=_BETWEEN,
        after="}\n",
        opening="<tool_calls>\n",
        closing="</tool_calls>",
    ),
    markers=("</tool_calls>",),
)
"""MiniMax M1: an object on each line between ``<tool_calls>`` and its end."""

PHI_4 = ToolFormat(
    name="phi_4",
    signs=(("<|tool_call|>", "<|/tool_call|>"),),
    begin="<|tool_call|>",
    parse=partial(parse_objects, end="<|/tool_call|>"),
    syntax=CallSyntax('<|tool_call|>{"name": "', _BETWEEN, "}<|/tool_call|>"),
    markers=("<|/tool_call|>",),
)
"""Phi 4 mini: ``<|tool_call|>{…}<|/tool_call|>``."""

GIGACHAT = ToolFormat(
    name="gigachat",
    signs=(("<|function_call|>",),),
    begin="<|function_call|>",
    parse=partial(parse_objects, end=""),
    syntax=CallSyntax('<|function_call|>{"name": "', _BETWEEN, "}"),
)
"""GigaChat 3.1: ``<|function_call|>{…}``."""


def _parse_functools(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    calls.begin(scanner)
    yield from parse_entries(scanner, calls)


FUNCTOOLS = ToolFormat(
    name="functools",
    signs=(("functools[",),),
    begin="functools[",
    parse=_parse_functools,
    syntax=CallSyntax(
        '{"name": "', _BETWEEN, "}", opening="functools[", separator=", ", closing="]"
    ),
)
"""Phi 4 mini as its makers have it, FireFunction 2: ``functools[{…}]``."""


def _parse_apertus(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    """Parse ``[{"name": {…}}, …]``."""
    calls.begin(scanner)
    yield from scanner.space()
    yield from scanner.expect("[")
    while True:
        yield from scanner.space()
        yield from scanner.expect("{")
        yield from scanner.space()
        calls.name(loads_text((yield from scanner.json_text()), "the name"))
        yield from scanner.space()
        yield from scanner.expect(":")
        yield from parse_arguments(scanner, calls)
        yield from scanner.space()
        yield from scanner.expect("}")
        calls.end()
        yield from scanner.space()
        goes_on = yield from scanner.follows(",")
        if not goes_on:
            break
        calls.begin(scanner)
    yield from scanner.expect("]")
    yield from scanner.space()
    yield from scanner.follows("<|tools_suffix|>")


APERTUS = ToolFormat(
    name="apertus",
    signs=(("<|tools_prefix|>",),),
    begin="<|tools_prefix|>",
    parse=_parse_apertus,
    syntax=CallSyntax(
        '{"',
        '": ',
        "}",
        opening="<|tools_prefix|>[",
        separator=", ",
        closing="]<|tools_suffix|>",
    ),
    markers=("<|tools_suffix|>",),
)
"""Apertus: ``<|tools_prefix|>[{"name": {…}}]<|tools_suffix|>``."""


def _parse_functionary(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    calls.begin(scanner)
    calls.name((yield from scanner.until(">")))
    scanner.skip(1)
    yield from parse_arguments(scanner, calls)
    calls.end()
    yield from scanner.space()
    yield from scanner.follows("</function>")


FUNCTIONARY = ToolFormat(
    name="functionary",
    signs=(("<function=example_function_name>",),),
    begin="<function=",
    parse=_parse_functionary,
    syntax=CallSyntax("<function=", ">", "</function>"),
    markers=("</function>",),
)
"""Functionary 3.1: ``<function=name>{…}</function>``."""

_OPENING, _CLOSING = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_BEFORE, _BETWEEN_IDS, _AFTER = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


def _parse_kimi_call(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    """Parse a call that is named ``functions.name:0``."""
    yield from scanner.expect(_BEFORE)
    name: str = yield from scanner.until(_BETWEEN_IDS)
    scanner.skip(len(_BETWEEN_IDS))
    prefix, found, rest = name.strip().partition("functions.")
    if prefix or not found:
        raise MalformedCallError(f"{json.dumps(name)} is no id of a call")
    number = rest.rpartition(":")[2]
    calls.name(rest.removesuffix(f":{number}") if number.isdigit() else rest)
    yield from parse_arguments(scanner, calls)
    calls.end()
    yield from scanner.space()
    yield from scanner.follows(_AFTER)


KIMI_K2 = ToolFormat(
    name="kimi_k2",
    signs=((_OPENING,),),
    begin=_OPENING,
    parse=partial(parse_section, one=_parse_kimi_call, closing=_CLOSING),
    syntax=CallSyntax(
        f"{_BEFORE}functions.",
        f":0{_BETWEEN_IDS}",
        _AFTER,
        opening=_OPENING,
        closing=_CLOSING,
    ),
    markers=(_CLOSING, _BEFORE, _BETWEEN_IDS, _AFTER),
)
"""Kimi K2: calls with ids such as ``functions.name:0`` between two markers."""

FORMATS = (
    KIMI_K2,
    COMMAND_R,
    NEMOTRON,
    APRIEL,
    MINIMAX_M1,
    PHI_4,
    FUNCTOOLS,
    APERTUS,
    GIGACHAT,
    FUNCTIONARY,
)
"""In the order in which they are tried."""
