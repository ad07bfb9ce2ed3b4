"""Literals of Python and JSON are read as these languages read them."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.text.tool_calls.literals import as_json, read_literal
from tests.cases import for_each

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(VALUES)
def test_values_that_python_or_json_writes_are_read_back(value: Any) -> None:
    assert read_literal(repr(value)) == ast.literal_eval(repr(value)) == value
    for ascii_only in (True, False):
        assert read_literal(json.dumps(value, ensure_ascii=ascii_only, indent=1)) == value


@for_each(
    ("text", "value"),
    [
        ("{'a': true, \"b\": None,}", {"a": True, "b": None}),
        ("('x', 1, )", ["x", 1]),
        (" -1.5e3 ", -1500.0),
        (r"'it\'s \d \u00e9 \ud83d\ude00 \x41'", "it's \\d é 😀 A"),
        ("'two\nlines'", "two\nlines"),
    ],
)
def test_mixtures_are_read(text: str, value: object) -> None:
    assert read_literal(text) == value


@for_each(
    "text",
    ["", "x", "f(1)", "1 2", "[1", "{'a' 1}", "{1: 2}", "'a", "[1,,2]", "9" * 5000, "1 + 1"]
    + ["[" * 70 + "]" * 70, r"'\ud800'", r"'\U00110000'", "__import__('os')", "{}.a", "[}"],
)
def test_invalid_literals_raise_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        as_json(read_literal(text))


def test_number_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError):
        as_json(read_literal("1e999"))
