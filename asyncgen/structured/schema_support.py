"""Refuse schemas that the grammar engine would misread, or take too long for.

llguidance 1.9 reads numbers as 64-bit floats, so a large integer becomes another one. Its patterns
support sets within sets, unlike those of JSON Schema (ECMA 262). Its automaton for multiples of a
number has one state for each unit of the number.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from asyncgen.errors import shorten
from asyncgen.structured.pattern_cost import cost_problem, optional_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_EXACT = 2**53
"""Largest magnitude up to which all integers are floats."""

MOST_UNITS = 2_000
"""Most units (of its last digit) of a ``multipleOf``: they take a tenth of a second."""

MOST_JOINED_UNITS = 10_000
"""Most units of the least common multiple, if several may hold for one value."""

MOST_SIZE = 2**20
"""Most characters of a schema as JSON: one call reads or writes it, and holds the interpreter."""

_DATA = frozenset(("const", "enum", "default", "examples", "example"))
_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
_CLASS = re.compile(r"\\.|\[\^?\]?((?:\\.|[^\]\\])*+)(\]|$)", re.DOTALL)
_SETS = re.compile(r"\[:|&&|--|~~")


class UnsupportedSchemaError(Exception):
    """A schema that cannot be enforced; the message names the keyword."""


def check_schema(schema: Any) -> None:
    """Check that the grammar of a schema will be exact.

    Args:
        schema: A JSON schema.

    Raises:
        UnsupportedSchemaError: A keyword cannot be enforced; names it.
    """
    check_size(schema)
    units = []
    weights: list[int] = []
    is_joined = False
    for each in _schemas(schema):
        if "x-guidance" in each:
            raise UnsupportedSchemaError("`x-guidance`: JSON is written on one line")
        is_joined = is_joined or "allOf" in each or "$ref" in each
        for name in ("const", "enum"):
            if name in each and not _is_exact(each[name]):
                raise UnsupportedSchemaError(f"`{name}`: an integer beyond 2**53 cannot be kept to")
        named = each.get("patternProperties")
        for name in ("pattern", *(named if isinstance(named, dict) else ())):
            pattern = each.get("pattern") if name == "pattern" else name
            if isinstance(pattern, str) and ends_in_escape(pattern):
                raise UnsupportedSchemaError(
                    f"`pattern` {shorten(pattern, 40)}: it ends in a backslash that escapes nothing"
                )
            if isinstance(pattern, str):
                weights.append(optional_parts(pattern))
            if isinstance(pattern, str) and _has_sets(pattern):
                raise UnsupportedSchemaError(
                    f"`pattern` {pattern[:40]!r}: sets within a set of characters"
                )
        if (unit := _units(each.get("multipleOf"))) is not None:
            units.append(unit)
    if (problem := cost_problem(weights)) is not None:
        raise UnsupportedSchemaError(f"`pattern`: {problem}")
    if units and (max(units) > MOST_UNITS or (is_joined and math.lcm(*units) > MOST_JOINED_UNITS)):
        raise UnsupportedSchemaError(f"`multipleOf`: at most {MOST_UNITS} units of the last digit")


def check_size(schema: Any) -> None:
    """Check that a schema is not too large, before anything else reads it.

    Args:
        schema: A JSON schema, or its JSON.

    Raises:
        UnsupportedSchemaError: It is too large.
    """
    size = -2
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        size += 2 + len(each) if isinstance(each, str) else 2
        if isinstance(each, int):
            size += each.bit_length() // 4
        if size + len(waiting) > MOST_SIZE:
            raise UnsupportedSchemaError(f"it is too large: at most {MOST_SIZE} characters of JSON")


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all schemas within it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _schemas(each)
    if not isinstance(schema, dict):
        return
    yield schema
    for name, value in schema.items():
        if name in _MAPS and isinstance(value, dict):
            yield from _schemas(list(value.values()))
        elif name not in _DATA:
            yield from _schemas(value)


def _is_exact(value: Any) -> bool:
    """Tell whether floats can represent all integers of a value."""
    if isinstance(value, list):
        return all(map(_is_exact, value))
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    return not isinstance(value, int) or abs(value) <= MOST_EXACT


def ends_in_escape(pattern: str) -> bool:
    """Tell whether a pattern ends in the beginning of an escape, which llguidance leaves out."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def _has_sets(pattern: str) -> bool:
    """Tell whether a set of characters contains another set, or an operator on sets."""
    return any(_SETS.search(found[1] or "") for found in _CLASS.finditer(pattern))


def _units(value: Any) -> int | None:
    """Return a number in units of its last digit; ``None`` for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return abs(value)
    if not math.isfinite(value):
        return None
    number = Decimal(repr(value))
    exponent = number.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return abs(int(number.scaleb(-min(exponent, 0))))
