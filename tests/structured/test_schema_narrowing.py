"""A schema is made narrower where its grammar would allow what it forbids, and nowhere else."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jsonschema_rs

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.structured.grammar_compiler import compile_grammar
from asyncgen.structured.output_format import read_output_format
from asyncgen.structured.schema_narrowing import narrow_schema
from tests.cases import for_each

UNTOUCHED: dict[str, Any] = {
    "properties": {"exclusiveMinimum": {"const": {"exclusiveMinimum": 0}}, "format": True},
    "type": "object",
    "enum": [{"format": "time"}],
}


def test_data_and_names_are_no_schemas() -> None:
    assert narrow_schema(UNTOUCHED) == UNTOUCHED
    integers = {"type": "integer", "exclusiveMinimum": 0}
    assert narrow_schema(integers) == integers


def accepts(schema: Any, texts: list[str]) -> list[bool]:
    """Tell for each text whether the schema's grammar takes it; empty if the schema is refused."""
    tokenizer = asyncgen.AutoTokenizer.from_pretrained("demo")
    shape = read_output_format({"json_schema": schema})
    assert shape is not None
    try:
        grammar = compile_grammar(dataclasses.replace(shape), tokenizer, 2048)
    except InvalidRequestError:
        return []
    found = []
    for text in texts:
        matcher = grammar.matcher()
        matcher.extend(tokenizer.encode_ids(text, False))
        found.append(matcher.is_complete)
    return found


@for_each(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "format": "time"}, '"23:59:59Z"', '"18:32:60Z"'),
        (
            {"format": "date-time", "type": "string"},
            '"2020-01-01T00:00:01Z"',
            '"2020-01-01T00:00:60Z"',
        ),
        ({"type": "string", "format": "hostname", "maxLength": 400}, '"a.b"', f'"{"a.b" * 90}"'),
        ({"type": "string", "format": "email"}, '"a@b.cc"', f'"{"a" * 65}@b.cc"'),
        ({"type": "string", "format": "email"}, '"a@b.cc"', f'"a@{"b" * 64}.cc"'),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.01}, "0.005", "0"),
        ({"type": "number", "minimum": -0.3, "exclusiveMaximum": 0}, "-0.25", "-0"),
    ],
)
def test_grammar_rejects_values_the_schema_forbids(schema: Any, good: str, bad: str) -> None:
    assert accepts(schema, [good, bad]) == [True, False]


def test_bounds_of_numbers_are_kept() -> None:
    rng = random.Random(0)
    for _ in range(60):
        low, high = sorted(rng.choice([0, 1, -1, rng.uniform(-2, 2), 0.01]) for _ in range(2))
        schema = {
            "type": "number",
            rng.choice(["minimum", "exclusiveMinimum"]): low,
            rng.choice(["maximum", "exclusiveMaximum"]): high,
        }
        values = [low, high, 0, -0.5, (low + high) / 2, int(low), int(high), 1, -1]
        texts = [str(round(value, 6)) for value in values]
        valid = jsonschema_rs.validator_for(schema).is_valid
        for text, taken in zip(texts, accepts(schema, texts), strict=False):
            assert valid(float(text)) or not taken, (schema, text)
