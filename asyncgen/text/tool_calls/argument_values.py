"""Read the value of an argument that stands between tags, by the schema that its tool declares.

Models write such values as JSON, as Python (``True``, ``['a', None]``), or as plain text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from asyncgen.text.tool_calls.literals import as_json, read_literal

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_NESTED = 16
_KEYWORDS = {"properties": "object", "items": "array", "minimum": "number", "maximum": "number"}
"""Keywords that tell the kind of a schema without a type."""


def value_as_json(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """Return a value as JSON: of the readings of a text, the first that the schema allows.

    The readings are JSON, a literal of Python, and the text itself. Where no kind is known, a text
    that is no JSON is a text; where none is allowed, JSON stays as it is.

    Args:
        text: The text between the tags.
        schema: Schema of the argument.
        root: Schema of all arguments, which holds the definitions.
    """
    kinds = allowed_kinds(schema, root)
    written = text.strip()
    is_json, value = _json(written)
    if is_json and (kinds is None or _is_of(value, kinds)):
        return written
    if kinds is not None:
        found, literal = _literal(written, kinds)
        if found:
            return literal
    if is_json and kinds is not None and "string" not in kinds:
        return written
    return json.dumps(text, ensure_ascii=False)


def allowed_kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str] | None:
    """Return the types of JSON that a schema allows; ``None`` for all, or where it does not say.

    Args:
        schema: The schema.
        root: The schema that references point into.
        depth: How many schemas it stands in.
    """
    if not isinstance(schema, dict) or depth > _MOST_NESTED:
        return None
    found = _own_kinds(schema, root, depth)
    if found is not None and schema.get("nullable") is True:
        found |= {"null"}
    return found


def _own_kinds(
    schema: dict[str, Any], root: Mapping[str, Any], depth: int
) -> frozenset[str] | None:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset((kinds,))
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(map(kind_of, schema["enum"]))
    if "const" in schema:
        return frozenset((kind_of(schema["const"]),))
    if isinstance(schema.get("$ref"), str):
        return allowed_kinds(_target(schema["$ref"], root), root, depth + 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            each = [allowed_kinds(one, root, depth + 1) for one in schema[word]]
            return None if None in each else frozenset().union(*(one or () for one in each))
    for one in schema.get("allOf") or ():
        inner = allowed_kinds(one, root, depth + 1)
        if inner is not None:
            return inner
    return next((frozenset((kind,)) for word, kind in _KEYWORDS.items() if word in schema), None)


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a reference within the schema leads to; ``None`` if it leads nowhere."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part) if isinstance(found, dict) else None
    return found


def kind_of(value: object) -> str:
    """Return the type of JSON of a value; a whole number is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "")


def _is_of(value: object, kinds: frozenset[str]) -> bool:
    kind = kind_of(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _json(text: str) -> tuple[bool, Any]:
    try:
        return True, json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return False, None


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _literal(text: str, kinds: frozenset[str]) -> tuple[bool, str]:
    """Return a literal of Python as JSON, if it is one of an allowed type other than text."""
    if "boolean" in kinds and text.lower() in ("true", "false"):
        return True, text.lower()
    try:
        value = read_literal(text)
        if kind_of(value) != "string" and _is_of(value, kinds):
            return True, as_json(value)
    except (ValueError, OverflowError):
        pass
    return False, ""
