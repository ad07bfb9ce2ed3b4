"""JSON schemas to answer: hard ones by hand, and as many random ones as are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}

HARD: list[Any] = [
    # Unions.
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}, {"type": "null"}]},
    {"type": ["string", "null", "boolean"], "maxLength": 4},
    {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    {"oneOf": [{"const": "a"}, {"const": "b"}, {"enum": [1, 2]}]},
    {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "x": {"type": inner}},
                "required": ["kind", "x"],
                "additionalProperties": False,
            }
            for kind, inner in (("a", "integer"), ("b", "boolean"), ("c", "null"))
        ]
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    # Recursion and references.
    {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    {"definitions": {"a b/c": {"type": "boolean"}}, "$ref": "#/definitions/a%20b~1c"},
    {"$defs": {"x": {"enum": [1, 2]}}, "type": "array", "items": {"$ref": "#/$defs/x"}},
    {"$ref": "#/$defs/nowhere"},
    # Patterns and formats.
    {"type": "string", "pattern": "^(a|b){2,5}$"},
    {"type": "string", "pattern": "^[A-Z][a-z]{1,3}( [A-Z][a-z]{1,3}){0,2}$"},
    {"type": "string", "pattern": "b+$", "maxLength": 8},
    {"type": "string", "pattern": '^["\\\\/]{3}$'},
    {"type": "string", "pattern": "^é{2}😀?$"},
    {"type": "string", "pattern": "^\\d{2,4}\\s\\w$"},
    {"type": "string", "pattern": "^(?=a)b$"},
    {"type": "string", "pattern": "^.{2}$"},
    {"type": "string", "pattern": "^[^a-z]{2}$"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 5},
    *(
        {"type": "string", "format": name}
        for name in (
            *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
            *("uri", "uri-reference", "iri", "regex", "json-pointer", "idn-email", "unknown"),
        )
    ),
    # Constants of all kinds.
    {"enum": ["grün", "naïve", "日本語", 'a"b', "\\", "\n", "\u0000", "😀", ""]},
    {"enum": [1, "1", 1.5, None, True, [1], {"a": 1}]},
    {"const": {"a": [1, 2.5, {"b": None}], "ü": "x"}},
    {"const": 0.1},
    {"const": -0.0},
    {"const": 1e100},
    {"enum": []},
    # Numbers.
    {"type": "integer", "minimum": -7, "maximum": 13},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2},
    {"type": "integer", "multipleOf": 7, "minimum": 3, "maximum": 1000},
    {"type": "number", "minimum": -1.25, "maximum": 3.141},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
    {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
    {"type": "number", "minimum": 1e10},
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"type": "integer", "maximum": 2.5},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 3},
    {"type": "number", "multipleOf": 0.01},
    {"minimum": 3},
    # Arrays.
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": "a"}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "minItems": 2, "maxItems": 3},
    {"type": "array", "maxItems": 0},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"const": 1}},
    {"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 2}},
    # Objects.
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
    {"type": "object", "minProperties": 2, "additionalProperties": {"type": "null"}},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "maxProperties": 2},
    {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "integer"}},
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"]},
    {"type": "object", "properties": {"a": False}, "additionalProperties": False},
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {
        "type": "object",
        "properties": {'ü"': {"const": 1}, "": {"const": 2}},
        "required": ["", 'ü"'],
    },
    {"type": "object", "properties": {"a": {"const": 1}}, "dependentRequired": {"a": ["b"]}},
    {"properties": {"a": {"type": "integer"}}},
    {"required": ["a"]},
    {},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"type": "object", "unevaluatedProperties": False},
    {"title": "T", "description": "d", "default": 1, "examples": [1], "type": "boolean"},
]

_WORDS = ("a", "b", "name", "größe", "日本", "x y", 'q"q', "0", "tags")
_PATTERNS = ("^[a-z]+$", "^(ab|cd)*$", "^[0-9]{3}-[0-9]{2}$", "^[^\\s]{1,4}$", "^é?[A-F]{2}$")
_FORMATS = ("date", "time", "email", "uuid", "ipv4", "date-time", "hostname")


def random_schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema that can be answered, most of the time."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    if depth:
        kinds += ["object", "object", "array", "anyOf", "allOf", "ref"]
    return _MAKERS[rng.choice(kinds)](rng, depth)


def _string(rng: random.Random, depth: int) -> Any:
    schema: dict[str, Any] = {"type": "string"}
    choice = rng.randrange(4)
    if choice == 0:
        schema["pattern"] = rng.choice(_PATTERNS)
    elif choice == 1:
        schema["format"] = rng.choice(_FORMATS)
    else:
        low = rng.randrange(4)
        schema |= {"minLength": low, "maxLength": low + rng.randrange(8)}
    return schema


def _integer(rng: random.Random, depth: int) -> Any:
    low = rng.randint(-1000, 1000)
    schema: dict[str, Any] = {"type": "integer"}
    if rng.random() < 0.6:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.6:
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.randrange(2, 500)
    if rng.random() < 0.2:
        schema["multipleOf"] = rng.randint(1, 9)
    return schema


def _number(rng: random.Random, depth: int) -> Any:
    low = round(rng.uniform(-50, 50), rng.randrange(4))
    schema: dict[str, Any] = {"type": "number"}
    if rng.random() < 0.7:
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.7:
        high = round(low + rng.uniform(0.5, 90), rng.randrange(4))
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = max(high, low + 1)
    return schema


def _constant(rng: random.Random) -> Any:
    texts = [rng.choice(_WORDS) for _ in range(2)]
    return rng.choice([rng.randint(-9, 99), texts[0], None, True, 0.25, texts, {texts[0]: 1}])


def _object(rng: random.Random, depth: int) -> Any:
    names = rng.sample(_WORDS, rng.randrange(1, 5))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: random_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
    }
    more = rng.randrange(4)
    if more < 3:
        schema["additionalProperties"] = False
    else:
        schema["maxProperties"] = len(names) + 1
        schema["additionalProperties"] = random_schema(rng, 0)
    return schema


def _array(rng: random.Random, depth: int) -> Any:
    low = rng.randrange(3)
    schema = {"type": "array", "minItems": low, "maxItems": low + rng.randrange(3)}
    if rng.random() < 0.3:
        schema["prefixItems"] = [random_schema(rng, depth - 1) for _ in range(2)]
    return schema | {"items": random_schema(rng, depth - 1)}


def _all_of(rng: random.Random, depth: int) -> Any:
    first, second = _object(rng, depth), _object(rng, depth)
    return {"allOf": [{**each, "additionalProperties": True} for each in (first, second)]}


def _reference(rng: random.Random, depth: int) -> Any:
    """Only of use at the top; elsewhere it leads nowhere, and is refused."""
    inner = random_schema(rng, depth - 1)
    return {
        "$defs": {"x": inner},
        "type": "array",
        "items": {"$ref": "#/$defs/x"},
        "maxItems": 2,
    }


_MAKERS: dict[str, Any] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": lambda rng, depth: {"type": "boolean"},
    "null": lambda rng, depth: {"type": "null"},
    "enum": lambda rng, depth: {"enum": [_constant(rng) for _ in range(rng.randrange(1, 4))]},
    "const": lambda rng, depth: {"const": _constant(rng)},
    "object": _object,
    "array": _array,
    "anyOf": lambda rng, depth: {"anyOf": [random_schema(rng, depth - 1) for _ in range(3)]},
    "allOf": _all_of,
    "ref": _reference,
}
