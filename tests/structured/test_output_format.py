"""Test the parameters of structured output, their refusals, and the parsed answers."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pydantic
import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.structured.answer_reader import NOTHING, PartialValue, read_answer
from asyncgen.structured.grammar_compiler import compile_grammar
from asyncgen.structured.output_format import MOST_CHARACTERS, OutputFormat, read_output_format
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer


class Animal(pydantic.BaseModel):
    """A class to answer with."""

    name: str
    legs: int = 4

    @pydantic.field_validator("name")
    @classmethod
    def _no_dragon(cls, name: str) -> str:
        if name == "dragon":
            raise ValueError("there are none")
        return name


@dataclasses.dataclass
class Pair:
    """Another one."""

    left: Animal
    right: float


def shape_of(**asked: Any) -> OutputFormat:
    """A shape that was asked for."""
    shape = read_output_format(asked)
    assert shape is not None
    return shape


@for_each(
    ("asked", "said"),
    [
        ({"json_schema": "{"}, "`json_schema`.*no JSON"),
        ({"json_schema": "[]"}, "`json_schema`.*an object"),
        ({"json_schema": {"type": {1}}}, "`json_schema`.*no JSON"),
        ({"json_schema": '{"a":' * 5000}, "`json_schema`.*no JSON"),
        ({"json_schema": {"const": "\ud800"}}, "surrogate"),
        ({"regex": "a" * (MOST_CHARACTERS + 1)}, f"at most {MOST_CHARACTERS}"),
        ({"regex": "\\"}, "`regex`.*escapes nothing"),
        ({"regex": "(a|b)\\"}, "`regex`.*escapes nothing"),
        ({"regex": "a\\\\\\"}, "`regex`.*escapes nothing"),
        ({"regex": "a", "choice": ["b"]}, "`regex`.*also `choice`"),
        ({"response_model": int}, "`response_model`.*pydantic model or a dataclass"),
        ({"response_model": Animal(name="a")}, "`response_model`"),
        ({"json_schema": {"properties": {f"k{i}": {} for i in range(2001)}}}, "too many prop"),
    ],
)
def test_wrong_output_formats_are_refused_by_name(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        read_output_format(asked)


REFUSED: list[dict[str, Any]] = [
    {"json_schema": {"type": "strin"}},
    {"json_schema": {"uniqueItems": True}},
    {"json_schema": {"not": {"type": "null"}}},
    {"json_schema": {"if": {}, "then": {"type": "null"}}},
    {"json_schema": {"contains": {"const": 1}}},
    {"json_schema": {"propertyNames": {"pattern": "^a"}}},
    {"json_schema": {"dependentRequired": {"a": ["b"]}}},
    {"json_schema": {"unevaluatedProperties": False}},
    {"json_schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
    {"json_schema": {"type": "string", "format": "of my own"}},
    {"json_schema": {"type": "string", "pattern": "^(?=a)b"}},
    {"json_schema": {"type": "integer", "minimum": 2, "maximum": 1}},
    {"json_schema": {"$ref": "http://localhost:1/schema"}},
    {"json_schema": '{"allOf":[' * 200 + "{}" + "]}" * 200},
    {"json_schema": {"type": "object", "properties": {f"k{i}": {} for i in range(1500)}}},
    {"regex": "a{9000}"},
    {"regex": "("},
    {"regex": r"\bfoo\b"},
    {"regex": r"[^\s\S]"},
    {"regex": r"foo[^\s\S]"},
    {"regex": r"[ab][^\s\S]"},
    {"json_schema": {"type": "string", "pattern": r"[^\s\S]"}},
    {"grammar": "start: start"},
    {"grammar": "start: a\na: b\nb: a"},
    {"grammar": "start: /a/ /[^\\s\\S]/"},
    {"grammar": "foo"},
    {"grammar": "start: other"},
    {"grammar": "root ::= other"},
]


@for_each("asked", REFUSED, ids=lambda asked: str(asked)[:60])
def test_unenforceable_formats_are_refused_by_name(asked: dict[str, Any]) -> None:
    (name,) = asked
    with pytest.raises(InvalidRequestError) as refused:
        compile_grammar(shape_of(**asked), byte_tokenizer(), 260)
    assert refused.value.parameter == name
    assert "\n" not in str(refused.value)
    assert "coerce" not in str(refused.value), "an option that nobody here can set"


def test_missing_grammar_engine_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        InvalidRequestError, match=r"`choice`.*pip install 'asyncgen\[structured\]'"
    ):
        compile_grammar(shape_of(choice=["a"]), byte_tokenizer(), 260)


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="needs a tokenizer of the library"):
        compile_grammar(shape_of(choice=["a"]), object(), 260)


def test_answers_become_values() -> None:
    assert read_answer(shape_of(json_object=True), '{"a": [1]}', "stop") == ({"a": [1]}, None)
    assert read_answer(shape_of(regex="a+"), "aa", "stop") == ("aa", None)
    shape = shape_of(response_model=Pair)
    text = '{"left": {"name": "fox"}, "right": 1.5}'
    assert read_answer(shape, text, "stop") == (Pair(Animal(name="fox"), 1.5), None)
    value, problem = read_answer(shape, text, "length")
    assert value is None and problem is not None and "length" in problem
    value, problem = read_answer(shape_of(response_model=Animal), '{"name": "dragon"}', "stop")
    assert value is None and problem is not None and "there are none" in problem
    behind = dataclasses.replace(shape_of(json_schema={"type": "integer"}), after="</think>")
    assert read_answer(behind, "so\n</think>\n 7", "stop") == (7, None)
    assert read_answer(behind, "so", "stop")[0] is None


def test_a_class_drops_no_key() -> None:
    assert shape_of(response_model=Pair).source.count('"additionalProperties": false') == 2


def test_a_value_grows() -> None:
    text = '{"a": "x\\"1e2\\n", "b": [12, true, {"c": -1.5e3}], "d": null}'
    growing = PartialValue(shape_of(json_object=True))
    seen = [value for character in text if (value := growing.add(character)) is not NOTHING]
    assert seen[:4] == [{}, {"a": ""}, {"a": "x"}, {"a": 'x"'}]
    assert {"a": 'x"1e2'} in seen
    assert {"a": 'x"1e2\n', "b": [12, True, {}]} in seen
    assert not any("1" == str(value.get("b", [0])[:1]) for value in seen)
    assert seen[-1] == {"a": 'x"1e2\n', "b": [12, True, {"c": -1500.0}], "d": None}
    assert growing.finish() is NOTHING


def test_a_number_alone_is_there_at_the_end() -> None:
    growing = PartialValue(shape_of(json_schema={"type": "integer"}))
    assert [growing.add("1"), growing.add("2")] == [NOTHING, NOTHING]
    assert growing.finish() == 12
    with pytest.raises(InvalidRequestError, match="only an answer in JSON grows"):
        PartialValue(shape_of(regex="a"))


def test_a_number_beyond_all_floats_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="json_schema"):
        read_output_format({"json_schema": {"multipleOf": 10**400}})
