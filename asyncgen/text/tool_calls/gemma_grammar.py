"""Write grammars of Gemma's arguments: objects with bare keys, and texts between special marks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from asyncgen.text.tool_calls.argument_schema import (
    UnwritableError,
    kept,
    members,
    text_body,
    texts_of,
)
from asyncgen.text.tool_calls.lark import json_rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.text.tool_calls.argument_schema import Member
    from asyncgen.text.tool_calls.lark import LarkRules

_KEY = r"/[A-Za-z0-9_.\-]+/"
_KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIGNS = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "number": _BOUNDS,
}
"""Keywords from which the type of a schema without a type is inferred."""


def write_arguments(lark: LarkRules, schema: Mapping[str, Any], quote: str) -> str:
    """Write the rules for the arguments of a tool, with their braces; return their name.

    Args:
        lark: Rules of the grammar, to which those of the arguments are added.
        schema: Schema of the arguments, an object.
        quote: Mark around texts.

    Raises:
        UnwritableError: The schema cannot be enforced.
    """
    return _Writer(lark, schema, quote).object(schema)


class _Writer:
    """Writer of rules of values, each where it is needed first."""

    def __init__(self, lark: LarkRules, root: Mapping[str, Any], quote: str) -> None:
        self._lark, self._root, self._quote = lark, root, quote
        self._named: dict[str, str] = {}

    def value(self, schema: Any) -> str:
        """Return the name of a rule for a value, or its body where that is short."""
        if not isinstance(schema, dict):
            return self._any()
        if "$ref" in schema:
            return self._reference(schema)
        if "anyOf" in schema:
            kept(schema, None, ("anyOf",))
            each = (self.value(one) for one in schema["anyOf"] if one is not False)
            return self._lark.add(" | ".join(dict.fromkeys(each)))
        kinds = schema.get("type")
        if kinds is None and ("enum" in schema or "const" in schema):
            kinds = list(_KINDS)
            return self._listed(schema, kinds)
        if kinds is None:
            names = (kind for kind, signs in _SIGNS.items() if schema.keys() & set(signs))
            kinds = next(names, None)
            if kinds is None:
                is_free = not kept(schema, "string", ("minLength", "maxLength"))
                return self._any() if is_free else self._text(schema)
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if "enum" in schema or "const" in schema:
            return self._listed(schema, kinds)
        return self._lark.add(" | ".join(self._of_kind(schema, kind) for kind in kinds))

    def object(self, schema: Mapping[str, Any]) -> str:
        """Return the rule of an object: its keys in their order; optional ones may be left out."""
        found = members(schema)
        if found is None:
            key = self._lark.add(_KEY, is_terminal=True)
            one = f'{key} ":" {self._any()}'
            return self._lark.add(f'"{{" ({one} ("," {one})*)? "}}"')
        for each in found:
            bare = each.key.strip() == each.key and each.key[:1] not in ("", "}")
            if not bare or ":" in each.key or self._quote in each.key:
                raise UnwritableError(f"{each.key!r} cannot stand bare as a key")
        return self._lark.add(f'"{{" {self._from(found, 0, is_first=True)} "}}"')

    def _from(self, found: list[Member], number: int, *, is_first: bool) -> str:
        """Return the rule of the keys of an object from the given number on."""
        if number == len(found):
            return '""'
        key, schema, is_required = found[number]
        try:
            value = self.value(schema)
        except UnwritableError as error:
            raise UnwritableError(f"argument {key!r}: {error}") from None
        rest = self._from(found, number + 1, is_first=False)
        body = f"{self._lark.text(('' if is_first else ',') + key + ':')} {value} {rest}"
        if not is_required:
            # Built once where it is the same rule: twice for each key doubles with every key.
            without = self._from(found, number + 1, is_first=True) if is_first else rest
            body += f" | {without}"
        return self._lark.add(body)

    def _reference(self, schema: Mapping[str, Any]) -> str:
        """Return a separate rule for the target of a reference, which may contain itself."""
        kept(schema, None, ("$ref",))
        place = schema["$ref"]
        name = self._named.get(place)
        if name is None:
            found: Any = self._root
            for part in place.removeprefix("#").split("/")[1:]:
                part = unquote(part).replace("~1", "/").replace("~0", "~")
                found = found.get(part) if isinstance(found, dict) else None
            if found is None or not place.startswith("#"):
                raise UnwritableError(f"`$ref` {place!r} leads nowhere")
            name = self._named[place] = self._lark.reserve()
            self._lark.define(name, self.value(found))
        return name

    def _of_kind(self, schema: Mapping[str, Any], kind: str) -> str:
        """Return the body of a rule for a value of one type."""
        if kind == "string":
            return self._text(schema)
        if kind == "object":
            return self.object({**schema, "type": "object"})
        if kind == "array":
            return self._array(schema)
        if kind == "boolean":
            kept(schema, kind, ("type",))
            return '("true" | "false")'
        if kind == "null":
            kept(schema, kind, ("type",))
            return '"null"'
        bounds = kept(schema, kind, ("type", *_BOUNDS))
        return self._lark.add(json_rule({**bounds, "type": kind}))

    def _array(self, schema: Mapping[str, Any]) -> str:
        given = kept(schema, "array", ("type", "items", "minItems", "maxItems"))
        low, high = int(given.get("minItems", 0)), given.get("maxItems")
        if high is not None and high < max(low, 1):
            if low:
                raise UnwritableError("`maxItems` is less than `minItems`")
            return '"[" "]"'
        items = given.get("items", True)
        if items is False:
            raise UnwritableError("`items` allows nothing")
        item = self.value(items)
        more = f'("," {item})'
        times = f"{{{max(low - 1, 0)},{'' if high is None else int(high) - 1}}}"
        inner = f"{item} {more}{times}"
        return self._lark.add(f'"[" {inner} "]"' if low else f'"[" ({inner})? "]"')

    def _text(self, schema: Mapping[str, Any]) -> str:
        listed, quote = texts_of(schema), self._quote
        if listed is not None:
            return self._lark.add(" | ".join(self._literal(text) for text in listed))
        body = self._lark.up_to(quote, quote, text_body(schema))
        return self._lark.add(f"{self._lark.text(quote)} {body}")

    def _listed(self, schema: Mapping[str, Any], kinds: list[str]) -> str:
        """Return the rule of listed values, of the types that are allowed."""
        kept(schema, None, ("type", "enum", "const"))
        values = [schema["const"]] if "const" in schema else schema["enum"]
        found = [each for each in values if any(_is_of(each, kind) for kind in kinds)]
        if not found or ("const" in schema and schema["const"] not in schema.get("enum", found)):
            raise UnwritableError("`enum` or `const` allows nothing")
        return self._lark.add(" | ".join(self._literal(each) for each in found))

    def _literal(self, value: Any) -> str:
        """Return a literal for a given value."""
        return self._lark.text(self._written(value))

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            if self._quote in value:
                raise UnwritableError(f"{value!r} holds the mark that ends a text")
            return f"{self._quote}{value}{self._quote}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        if isinstance(value, dict):
            if any(not key or set(key) & set(':}" ,\n') for key in value):
                raise UnwritableError("`enum` or `const` has a key that cannot stand bare")
            return f"{{{','.join(f'{key}:{self._written(one)}' for key, one in value.items())}}}"
        return json.dumps(value)

    def _any(self) -> str:
        """Return the rule of any value, to any depth."""
        name = self._named.get("")
        if name is None:
            name = self._named[""] = self._lark.reserve()
            key = self._lark.add(_KEY, is_terminal=True)
            number = self._lark.add(json_rule({"type": "number"}))
            text = f"{self._lark.text(self._quote)} {self._lark.up_to(self._quote, self._quote)}"
            items = f'"[" ({name} ("," {name})*)? "]"'
            one = f'{key} ":" {name}'
            pairs = f'"{{" ({one} ("," {one})*)? "}}"'
            words = '"true" | "false" | "null"'
            self._lark.define(name, f"{text} | {number} | {words} | {items} | {pairs}")
        return name


def _is_of(value: Any, kind: str) -> bool:
    """Tell whether a value is of a type of JSON Schema."""
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    kinds: dict[str, type] = {"string": str, "array": list, "object": dict, "null": type(None)}
    return kind in kinds and isinstance(value, kinds[kind])
