"""Tool-call formats that are calls of Python: ``name(city="Paris", days=2)``."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgen.text.tool_calls.argument_schema import UnwritableError, members
from asyncgen.text.tool_calls.formats import CallSyntax, ToolFormat
from asyncgen.text.tool_calls.lark import json_rule
from asyncgen.text.tool_calls.literals import as_json, read_literal
from asyncgen.text.tool_calls.text_scanner import MalformedCallError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.text.tool_calls.argument_schema import Member
    from asyncgen.text.tool_calls.call_collector import CallCollector
    from asyncgen.text.tool_calls.lark import LarkRules
    from asyncgen.text.tool_calls.text_scanner import IncrementalParse, TextScanner

_MARK = re.compile(r"""['"()\[\]{},]""")
_IN_QUOTES = {quote: re.compile(rf"[\\{quote}]") for quote in "'\""}
_NAME = re.compile(r"[^\W\d]\w*")
_KINDS = ["string", "number", "boolean", "null", "array", "object"]


def _parse(
    scanner: TextScanner, calls: CallCollector, *, separator: str, closing: str, is_list: bool
) -> IncrementalParse:
    """Parse calls, and the marker behind the last one."""
    calls.begin(scanner)
    yield from scanner.space()
    if is_list:
        yield from scanner.expect("[")
    while True:
        yield from _call(scanner, calls)
        yield from scanner.space()
        yield from scanner.follows(separator)
        yield from scanner.space()
        is_over = yield from scanner.follows("]" if is_list else closing)
        if is_over or (scanner.is_complete and not scanner.rest):
            break
        calls.begin(scanner)
    if is_list:
        yield from scanner.space()
        yield from scanner.follows(closing)


def _call(scanner: TextScanner, calls: CallCollector) -> IncrementalParse:
    """Parse ``name(key=value, …)``; each argument comes out when it is complete."""
    yield from scanner.space()
    name: str = yield from scanner.until("(")
    calls.name(name.strip())
    scanner.skip(1)
    separator = "{"
    while True:
        yield from scanner.space()
        is_over = yield from scanner.follows(")")
        if is_over:
            break
        key: str = yield from scanner.until("=", ")")
        yield from scanner.expect("=")
        text: str = yield from _literal(scanner)
        try:
            value = as_json(read_literal(text))
        except ValueError as error:
            raise MalformedCallError(f"the argument {key.strip()!r}: {error}") from None
        calls.arguments(f"{separator}{json.dumps(key.strip(), ensure_ascii=False)}: {value}")
        separator = ", "
        yield from scanner.space()
        yield from scanner.follows(",")
    calls.arguments("{}" if separator == "{" else "}")
    calls.end()


def _literal(scanner: TextScanner) -> IncrementalParse:
    """Read and return the text of a literal, up to the comma or bracket behind it."""
    parts: list[str] = []
    depth = 0
    while True:
        found = _MARK.search(scanner.rest)
        if found is None:
            parts.append(scanner.skip(len(scanner.rest)))
            yield from scanner.more()
            continue
        mark = found[0]
        if mark in ",)]}" and not depth:
            parts.append(scanner.skip(found.start()))
            return "".join(parts)
        parts.append(scanner.skip(found.end()))
        if mark in _IN_QUOTES:
            parts.append((yield from _quoted(scanner, mark)))
        elif mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1


def _quoted(scanner: TextScanner, quote: str) -> IncrementalParse:
    """Read and return the rest of a string, with its closing quote."""
    parts: list[str] = []
    while True:
        found = _IN_QUOTES[quote].search(scanner.rest)
        if found is None:
            parts.append(scanner.skip(len(scanner.rest)))
            yield from scanner.more()
        elif found[0] == quote:
            parts.append(scanner.skip(found.end()))
            return "".join(parts)
        elif found.end() < len(scanner.rest):
            parts.append(scanner.skip(found.end() + 1))
        else:
            yield from scanner.more()


def write_arguments(lark: LarkRules, schema: Mapping[str, Any]) -> str:
    """Write the rules for arguments by name, each as JSON; return the body of a rule for all.

    Args:
        lark: Rules of the grammar, to which those of the arguments are added.
        schema: Schema of the arguments, an object.

    Raises:
        UnwritableError: The schema cannot be enforced.
    """
    found = members(schema)
    if found is None:
        key = lark.add("/[A-Za-z_][A-Za-z0-9_]*/", is_terminal=True)
        one = f'{key} "=" {lark.add(json_rule({"type": _KINDS}))}'
        return f'({one} (", " {one})*)?'
    for each in found:
        if _NAME.fullmatch(each.key) is None:
            raise UnwritableError(f"the argument {each.key!r} has a name that Python has not")
    named = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return _in_order(lark, found, named)


def _in_order(lark: LarkRules, found: list[Member], named: Mapping[str, Any]) -> str:
    """Return the rule of the arguments in their order; optional ones may be left out.

    Built from the last argument to the first: each has a rule for itself and all behind it, once
    as the first one that is written, and once behind another.
    """
    first = later = '""'
    for key, schema, is_required in reversed(found):
        own = schema if isinstance(schema, dict) and schema else {"type": _KINDS}
        written = f"{lark.text(key + '=')} {lark.add(json_rule({**named, **own}))} {later}"
        behind = f"{lark.text(', ')} {written}"
        first = lark.add(written if is_required else f"{written} | {first}")
        later = lark.add(behind if is_required else f"{behind} | {later}")
    return first


LFM2 = ToolFormat(
    name="lfm2",
    signs=(
        ("<|tool_call_start|>",),
        ("<|tool_list_start|>",),
        ("List of tools: [", "<|im_start|>"),
    ),
    begin="<|tool_call_start|>",
    parse=partial(_parse, separator=",", closing="<|tool_call_end|>", is_list=True),
    syntax=CallSyntax(
        before="",
        between="(",
        after=")",
        opening="<|tool_call_start|>[",
        separator=", ",
        closing="]<|tool_call_end|>",
        arguments=write_arguments,
    ),
    markers=("<|tool_call_end|>",),
)
"""LFM 2 and 2.5: ``<|tool_call_start|>[name(key="value")]<|tool_call_end|>``."""

OLMO_3 = ToolFormat(
    name="olmo_3",
    signs=(("<function_calls>", "</function_calls>"),),
    begin="<function_calls>",
    parse=partial(_parse, separator="", closing="</function_calls>", is_list=False),
    syntax=CallSyntax(
        before="",
        between="(",
        after=")\n",
        opening="<function_calls>\n",
        closing="</function_calls>",
        arguments=write_arguments,
    ),
    markers=("</function_calls>",),
)
"""OLMo 3: ``<function_calls>name(key="value")</function_calls>``, a call on each line."""

FORMATS = (LFM2, OLMO_3)
"""In the order in which they are tried."""
