"""The grammar of a call allows what its reader reads, and nothing that the schema forbids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.text.tool_calls.argument_schema import UnwritableError
from asyncgen.text.tool_calls.call_collector import CallCollector
from asyncgen.text.tool_calls.call_grammar import CallGrammar
from asyncgen.text.tool_calls.format_detection import TOOL_FORMATS, find_formats
from tests.cases import for_each

if TYPE_CHECKING:
    from asyncgen.text.tool_calls.formats import ToolFormat

llguidance = pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TAGGED = {
    "seed": "<parameter=city>Rome</parameter>\n<parameter=days>2</parameter>\n",
    "minimax_m2": '<parameter name="city">Rome</parameter>\n<parameter name="days">2</parameter>\n',
    "step_3": '<steptml:parameter name="city">Rome</steptml:parameter>\n'
    '<steptml:parameter name="days">2</steptml:parameter>\n',
    "hunyuan_3": "<arg_key:opensource>city</arg_key:opensource>\n"
    "<arg_value:opensource>Rome</arg_value:opensource>\n"
    "<arg_key:opensource>days</arg_key:opensource>\n"
    "<arg_value:opensource>2</arg_value:opensource>\n",
    "minicpm": '<param name="city">Rome</param><param name="days">2</param>',
    "lfm2": 'city="Rome", days=2',
    "olmo_3": 'city="Rome", days=2',
}
"""Arguments that are no JSON."""

WRITTEN = [each for each in TOOL_FORMATS if each.name in TAGGED or each.syntax.arguments is None]


def grammar(tools: ToolFormat, schema: dict[str, Any], *, is_single: bool = False) -> str:
    return CallGrammar(tools.syntax, {"weather": schema}, {}, is_single=is_single).calls()


def allows(source: str, text: str) -> bool:
    """Tell whether a whole text follows a grammar."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(source))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def written(tools: ToolFormat, count: int = 1) -> str:
    """Return calls as a format writes them."""
    syntax = tools.syntax
    arguments = TAGGED.get(tools.name, json.dumps({"city": "Rome", "days": 2}))
    call = f"{syntax.before}weather{syntax.between}{arguments}{syntax.after}"
    return syntax.opening + syntax.separator.join([call] * count) + syntax.closing


@for_each("tools", list(TOOL_FORMATS))
def test_call_separator_is_no_prefix_of_the_closing_text(tools: ToolFormat) -> None:
    separator, closing = tools.syntax.separator, tools.syntax.closing
    assert not (separator and closing.startswith(separator))


@for_each("tools", WRITTEN)
def test_grammar_allows_calls_the_parser_reads(tools: ToolFormat) -> None:
    source = grammar(tools, SCHEMA)
    for count in (1, 2):
        text = written(tools, count)
        if tools.name == "harmony" and count > 1:
            continue  # a call ends the answer
        assert allows(source, text), text
        calls = CallCollector({"weather": SCHEMA}, str)
        parser = find_formats(None, tools.name, "none").parser(calls, reads_reasoning=False)
        parser.put(text)
        parser.flush()
        assert calls.count == count and not any(delta.error for delta in parser.take()[1])


@for_each("tools", WRITTEN)
def test_grammar_rejects_values_the_schema_forbids(tools: ToolFormat) -> None:
    source, text = grammar(tools, SCHEMA, is_single=True), written(tools)
    assert allows(source, text)
    for other in (text.replace("2", '"x"'), text.replace("Rome", "").replace("city", "town")):
        assert not allows(source, other), other
    assert not allows(source, text + text)


@for_each(
    ("schema", "text", "is_allowed"),
    [
        ({"a": {"type": "boolean"}}, "a=true", True),
        ({"a": {"type": "boolean"}}, 'a="true"', False),
        ({"a": {"enum": ["x", 1]}}, "a=1", True),
        ({"a": {"enum": ["x", 1]}}, "a=2", False),
        ({"a": {"type": "array", "items": {"type": "integer"}}}, "a=[1, 2]", True),
        ({"a": {"$ref": "#/$defs/n"}}, "a=3", True),
        ({"a": {"$ref": "#/$defs/n"}}, "a=true", False),
        ({}, "", True),
        ({}, 'any="x", more={"k": null}', True),
    ],
)
def test_arguments_by_name_follow_the_schema(
    schema: dict[str, Any], text: str, is_allowed: bool
) -> None:
    tools = next(each for each in TOOL_FORMATS if each.name == "olmo_3")
    whole = {"type": "object", "properties": schema, "$defs": {"n": {"type": "integer"}}}
    answer = f"<function_calls>\nweather({text})\n</function_calls>"
    assert allows(grammar(tools, whole), answer) is is_allowed


@for_each("name", ["olmo_3", "gemma"])
def test_optional_arguments_may_be_left_out_whatever_their_number(name: str) -> None:
    tools = next(each for each in TOOL_FORMATS if each.name == name)
    many = {f"k{number}": {"type": "integer"} for number in range(40)}  # twice each: 2 ** 40 rules
    source = grammar(tools, {"type": "object", "properties": many})
    assert source.count("\n") < 200
    form = "<function_calls>\nweather({})\n</function_calls>"
    sign, comma = "=", ", "
    if name == "gemma":
        form, sign, comma = "<|tool_call>call:weather{{{}}}<tool_call|>", ":", ","
    for names in ((), ("k0",), ("k7", "k39"), ("k0", "k1", "k2")):
        assert allows(source, form.format(comma.join(f"{each}{sign}1" for each in names)))
    assert not allows(source, form.format(f"k1{sign}1{comma}k0{sign}1"))


def test_name_that_python_cannot_hold_is_refused() -> None:
    tools = next(each for each in TOOL_FORMATS if each.name == "lfm2")
    with pytest.raises(UnwritableError, match="a-b"):
        grammar(tools, {"type": "object", "properties": {"a-b": {}}})
