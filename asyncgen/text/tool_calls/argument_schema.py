"""Read the schema of a tool's arguments that are not written as JSON.

A grammar of such arguments supports a part of JSON Schema, exactly or more narrowly; any other
keyword is refused by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from asyncgen.text.tool_calls.lark import ANY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class UnwritableError(Exception):
    """A schema that a format cannot enforce; the message names the keyword."""


class Member(NamedTuple):
    """A key of an object, and the schema of its value."""

    key: str
    schema: Any
    is_required: bool


_NOTES = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id", "$anchor", "$defs", "definitions"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    )
)
"""Keywords that allow and forbid nothing."""

_OF_KINDS: Mapping[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": frozenset(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    ),
    "array": frozenset(
        (
            *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
            *("contains", "minContains", "maxContains", "unevaluatedItems"),
        )
    ),
    "object": frozenset(
        (
            *("properties", "required", "additionalProperties", "patternProperties"),
            *("propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
            *("dependentRequired", "dependentSchemas", "dependencies"),
        )
    ),
}
"""Keywords that restrict values of one kind alone."""

_OBJECT = ("properties", "required", "additionalProperties")


def kept(schema: Mapping[str, Any], kind: str | None, known: Collection[str]) -> dict[str, Any]:
    """Return the keywords of a schema that restrict values of a kind.

    Args:
        schema: The schema.
        kind: Type of JSON; ``None``: values of all types.
        known: Keywords that the caller enforces.

    Returns:
        The known keywords that are given.

    Raises:
        UnwritableError: Another keyword restricts values of this kind.
    """
    own = "number" if kind == "integer" else kind
    elsewhere = {
        name for each, names in _OF_KINDS.items() if own not in (each, None) for name in names
    }
    for name in schema:
        if name not in known and name not in _NOTES and name not in elsewhere:
            raise UnwritableError(f"`{name}` cannot be enforced there")
    return {name: schema[name] for name in known if name in schema}


def members(schema: Mapping[str, Any]) -> list[Member] | None:
    """Return the keys of an object, in their order; other keys are never written.

    Args:
        schema: Schema of the object.

    Returns:
        ``None`` if no key is named and any may be written.

    Raises:
        UnwritableError: The schema has other keywords, or requires a key without a schema.
    """
    given = kept(schema, "object", ("type", *_OBJECT))
    kind = given.get("type", "object")
    if kind not in ("object", ["object"]):
        raise UnwritableError(f"`type` {kind!r} is no object")
    properties, required = given.get("properties", {}), given.get("required", [])
    unknown = [key for key in required if key not in properties]
    if unknown:
        raise UnwritableError(f"`required` names {unknown[0]!r}, which is not in `properties`")
    if not properties and given.get("additionalProperties", True) in (True, {}):
        return None
    found = [Member(key, own, key in required) for key, own in properties.items()]
    impossible = [each for each in found if each.schema is False and each.is_required]
    if impossible:
        raise UnwritableError(
            f"`required` names {impossible[0].key!r}, which nothing is allowed for"
        )
    return [each for each in found if each.schema is not False]


def texts_of(schema: Mapping[str, Any]) -> list[str] | None:
    """Return the texts that are allowed; ``None`` if the schema does not list them.

    Raises:
        UnwritableError: The schema of a text cannot be enforced, or allows nothing.
    """
    known = ("type", "enum", "const", "minLength", "maxLength")
    given = kept(schema, "string", known)
    low, high = given.get("minLength", 0), given.get("maxLength")
    if "enum" not in given and "const" not in given:
        if high is not None and high < low:
            raise UnwritableError("`maxLength` is less than `minLength`")
        return None
    listed = [given["const"]] if "const" in given else list(given["enum"])
    if "const" in given and "enum" in given and given["const"] not in given["enum"]:
        listed = []
    found = [
        each
        for each in listed
        if isinstance(each, str) and low <= len(each) and (high is None or len(each) <= high)
    ]
    if not found:
        raise UnwritableError("`enum` or `const` allows no text")
    return found


def text_body(schema: Mapping[str, Any]) -> str:
    """Return a terminal for a text of an allowed length."""
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if not low and high is None:
        return ANY
    return f"/(?s:.{{{low},{'' if high is None else int(high)}}})/"
