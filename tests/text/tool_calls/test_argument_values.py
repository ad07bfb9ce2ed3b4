"""Values between tags become what the schema of their argument says."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncgen.text.tool_calls.argument_values import allowed_kinds, value_as_json
from asyncgen.text.tool_calls.call_collector import CallCollector
from asyncgen.text.tool_calls.format_detection import find_formats
from asyncgen.types import ToolCall
from tests.cases import for_each

ROOT = {"$defs": {"switch": {"type": "boolean"}, "self": {"$ref": "#/$defs/self"}}}
OPTIONAL = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
TEXT_OR_NULL = {"type": ["string", "null"]}


@for_each(
    ("text", "schema", "value"),
    [
        ("True", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("TRUE", {"type": "boolean"}, True),
        ("true", {"type": "boolean"}, True),
        ("None", {"type": "null"}, None),
        ("None", OPTIONAL, None),
        ("False", OPTIONAL, False),
        ("True", {"$ref": "#/$defs/switch"}, True),
        ("None", {"type": "integer", "nullable": True}, None),
        ("True", {"enum": [True, "auto"]}, True),
        ("auto", {"enum": [True, "auto"]}, "auto"),
        ("None", TEXT_OR_NULL, None),
        ("5", TEXT_OR_NULL, "5"),
        ("True", TEXT_OR_NULL, "True"),
        ("['a']", TEXT_OR_NULL, "['a']"),
        ('"5"', TEXT_OR_NULL, "5"),
        (" two words ", TEXT_OR_NULL, " two words "),
        ("5", {"type": "number"}, 5),
        ("5.0", {"type": "integer"}, 5.0),
        ("+5", {"type": "integer"}, 5),
        (".5", {"type": "number"}, 0.5),
        ("1e3", {"type": ["number", "null"]}, 1000.0),
        ("123456789012345678901234567890", {"type": "integer"}, 123456789012345678901234567890),
        ("NaN", {"type": "number"}, "NaN"),
        ("['a', True, None]", {"type": "array"}, ["a", True, None]),
        ("(1, 2)", {"type": "array"}, [1, 2]),
        ("['a', \"it's\"]", {"items": {"type": "string"}}, ["a", "it's"]),
        (
            "{'on': True, 'of': {'x': [None]}}",
            {"type": "object"},
            {"on": True, "of": {"x": [None]}},
        ),
        ("{'on': True}", {"properties": {}}, {"on": True}),
        ('{"on": true}', {"type": "object"}, {"on": True}),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("oh", {"type": "boolean"}, "oh"),
        ("5", {"type": "boolean"}, 5),
        ("None", {"$ref": "#/nowhere"}, "None"),
        ("None", {"$ref": "#/$defs/self"}, "None"),
    ],
)
def test_value_is_read_by_the_schema(text: str, schema: Any, value: object) -> None:
    read = json.loads(value_as_json(text, schema, ROOT))
    assert read == value and type(read) is type(value)


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = {bool: "boolean", type(None): "null", list: "array", dict: "object"}


@given(VALUES.filter(lambda value: not isinstance(value, str)))
def test_json_and_python_of_a_value_are_read_alike(value: Any) -> None:
    kind = KINDS.get(type(value), "number")
    for schema in ({"type": kind}, {"type": ["string", kind]}, {"anyOf": [{"type": kind}]}):
        assert allowed_kinds(schema, {}) is not None
        for text in (repr(value), json.dumps(value), f"\n{value!r} "):
            assert json.loads(value_as_json(text, schema, {})) == value


SCHEMA = {
    "type": "object",
    "properties": {
        "on": {"type": "boolean"},
        "note": OPTIONAL,
        "names": {"type": "array"},
        "text": {"type": "string"},
    },
}
VALUES_OF = {"on": "True", "note": "None", "names": "['a', False]", "text": "True"}
TAGGED = {
    "qwen_coder": (
        "<tool_call>\n<function=set>\n",
        "<parameter={}>\n{}\n</parameter>\n",
        "</function>",
    ),
    "glm": (
        "<tool_call>set\n",
        "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
        "</tool_call>",
    ),
    "seed": (
        "<seed:tool_call>\n<function=set>\n",
        "<parameter={}>{}</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="set">\n',
        '<parameter name="{}">{}</parameter>\n',
        "</invoke>\n</minimax:tool_call>",
    ),
    "minicpm": ('<function name="set">', '<param name="{}">{}</param>', "</function>"),
}


@for_each("name", TAGGED)
def test_words_of_python_are_read_in_every_tagged_format(name: str) -> None:
    before, argument, after = TAGGED[name]
    answer = before + "".join(argument.format(*each) for each in VALUES_OF.items()) + after
    assert arguments_of(name, answer) == {
        "on": True,
        "note": None,
        "names": ["a", False],
        "text": "True",
    }


def test_words_of_python_are_read_in_gemmas_format() -> None:
    answer = (
        '<|tool_call>call:set{on:True,note:None,names:[False,1],text:<|"|>True<|"|>}<tool_call|>'
    )
    assert arguments_of("gemma", answer) == {
        "on": True,
        "note": None,
        "names": [False, 1],
        "text": "True",
    }


def arguments_of(name: str, answer: str) -> object:
    """Read the arguments of the one call of an answer, a few characters at a time."""
    calls = CallCollector({"set": SCHEMA}, str)
    parser = find_formats(None, name, "none").parser(calls, reads_reasoning=False)
    for start in range(0, len(answer), 3):
        parser.put(answer[start : start + 3])
    parser.flush()
    (call,) = ToolCall.whole(parser.take()[1])
    return json.loads(call.arguments)
