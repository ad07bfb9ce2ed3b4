"""Make a schema narrower where the grammar engine would allow more than the schema.

llguidance 1.9 writes `0` for a number that must be above 0 and below 1, seconds of 60 at any time
of the day, and host names of any length, and it rounds bounds beyond 2**53. The narrower schema
allows a part of the original one, and nothing else. The soak test of random schemas searches for
further cases.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from asyncgen.structured.schema_support import MOST_EXACT

_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties", "additionalItems")

_FORMATS: dict[str, dict[str, Any]] = {
    "date-time": {"pattern": "^.{17}[0-5]"},
    "time": {"pattern": "^.{6}[0-5]"},
    "hostname": {"maxLength": 253},
    "email": {
        "maxLength": 254,
        "pattern": "^[^@]{1,64}@[^.@\\[]{1,63}(\\.[^.@]{1,63})*$",
    },
}
"""Rules of formats beyond their grammars. Leap seconds are excluded, since only some are valid;
lengths are those of RFC 1123 and RFC 5321, section 4.5.3.1."""


def narrow_schema(schema: Any) -> Any:
    """Return a schema whose grammar allows nothing that the given one forbids.

    Args:
        schema: A JSON schema; not changed.
    """
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in _LISTS:
        if isinstance(made.get(name), list):
            made[name] = [narrow_schema(each) for each in made[name]]
    for name in _MAPS:
        if isinstance(made.get(name), dict):
            made[name] = {key: narrow_schema(each) for key, each in made[name].items()}
    for name in _SINGLE:
        if isinstance(made.get(name), list):  # as old drafts have it
            made[name] = [narrow_schema(each) for each in made[name]]
        elif name in made:
            made[name] = narrow_schema(made[name])
    _narrow_format(made)
    _narrow_large(made)
    if made.get("type") != "integer":
        _narrow_bounds(made)
    return made


def _narrow_format(schema: dict[str, Any]) -> None:
    """Add the rules of a string's format to the schema."""
    name = schema.get("format")
    further = _FORMATS.get(name) if isinstance(name, str) else None
    if further is None:
        return
    if further.keys() & schema.keys():
        schema["allOf"] = [*schema.get("allOf", ()), further]
    else:
        schema.update(further)


def _narrow_large(schema: dict[str, Any]) -> None:
    """Move bounds that no float can represent inwards, to numbers of 14 digits."""
    for name, sign in (
        *(("minimum", 1), ("exclusiveMinimum", 1)),
        *(("maximum", -1), ("exclusiveMaximum", -1)),
    ):
        bound = schema.get(name)
        if isinstance(bound, int) and abs(bound) > MOST_EXACT:
            unit: int = 10 ** (len(str(abs(bound))) - 14)
            schema[name] = sign * (-(-sign * bound // unit) + 1) * unit


def _narrow_bounds(schema: dict[str, Any]) -> None:
    """Turn an excluded whole number into a bound beside it."""
    for name, inclusive, opposite, sign in (
        ("exclusiveMinimum", "minimum", ("maximum", "exclusiveMaximum"), 1),
        ("exclusiveMaximum", "maximum", ("minimum", "exclusiveMinimum"), -1),
    ):
        bound = schema.get(name)
        if not _is_number(bound) or bound != int(bound):
            continue
        room = [abs(schema[other] - bound) for other in opposite if _is_number(schema.get(other))]
        # Nothing lies between a number and itself, so the bound leaves nothing.
        step = min([1e-9, *(each * 1e-6 for each in room)]) if all(room) else 1
        beside = bound + sign * max(step, abs(bound) * 1e-15)
        old = schema.get(inclusive)
        del schema[name]
        if _is_number(old):
            beside = max(old, beside) if sign > 0 else min(old, beside)
        schema[inclusive] = beside


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
