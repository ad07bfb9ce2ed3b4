"""Test that every schema keyword is either enforced or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.structured.output_format import read_output_format
from asyncgen.structured.schema_narrowing import narrow_schema
from asyncgen.structured.schema_support import check_schema
from tests.cases import for_each

BIG = 2**53

REFUSED: list[tuple[Any, str]] = [
    ({"const": BIG + 1}, "const"),
    ({"type": "array", "items": {"enum": [1, {"a": [-BIG - 1]}]}}, "enum"),
    ({"type": "string", "pattern": "^[[:alpha:]]$"}, "pattern"),
    ({"type": "string", "pattern": "[a-z&&[^b]]"}, "pattern"),
    ({"type": "object", "patternProperties": {"[a--b]": {}}}, "pattern"),
    ({"type": "string", "pattern": "\\"}, "pattern"),
    ({"items": {"pattern": "a\\\\\\"}}, "pattern"),
    ({"properties": {"a": {"patternProperties": {"^b\\": {}}}}}, "pattern"),
    ({"type": "integer", "multipleOf": 123456789}, "multipleOf"),
    ({"properties": {"x": {"multipleOf": 0.20001}}}, "multipleOf"),
    ({"allOf": [{"multipleOf": 1999}, {"multipleOf": 1997}]}, "multipleOf"),
]


@for_each(("schema", "name"), REFUSED, ids=str)
def test_unsupported_schema_keywords_are_refused_by_name(schema: Any, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"`json_schema`.*`{name}`"):
        read_output_format({"json_schema": schema})


def test_supported_schemas_are_accepted() -> None:
    for schema in (
        {"const": BIG},
        {"const": 1e300, "default": BIG + 1},
        {"properties": {"const": {"enum": [1, -BIG]}}},
        {"type": "string", "pattern": "^[a-z&~:-]+\\[:x&&y$"},
        {"type": "string", "pattern": "^[]a]$"},
        {"type": "string", "pattern": "a\\\\"},
        {"multipleOf": 2000},
        {"multipleOf": 0.01},
        {"multipleOf": 1e-6, "type": "number"},
        {"properties": {"a": {"multipleOf": 1999}, "b": {"multipleOf": 1997}}},
        True,
    ):
        check_schema(schema)


@for_each("bound", [BIG + 1, 2**63 - 1, -(2**63), 10**16, -(10**30) + 7])
def test_large_bounds_move_inwards(bound: int) -> None:
    low = narrow_schema({"type": "integer", "minimum": bound})["minimum"]
    high = narrow_schema({"type": "integer", "maximum": bound})["maximum"]
    assert high < bound < low and low - high <= abs(bound) * 1e-12
    assert bound < float(low) and float(high) < bound
