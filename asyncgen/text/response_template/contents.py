"""Turn the text of a region into a value, and give it the shape that a message has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncgen.text.response_template.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

STREAMED = frozenset({"text", "int", "float", "bool"})
"""Contents whose text is the value; the pieces of all others mean something only together."""

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "text": ("strip",),
    "int": ("strip",),
    "float": ("strip",),
    "bool": ("strip",),
    "json": ("unquoted_keys", "string_delims", "allow_non_json", "strip"),
    "xml-inline": ("tag_pattern", "value_parser", "merge_duplicates"),
    "kv-lines": ("line_sep", "kv_sep", "strip", "value_parser"),
}
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_BARE_KEY = re.compile(r"(?<=[{,])(\w+):")
_MOST_NESTED = 32


def check_content(name: object, arguments: object, depth: int = 0) -> dict[str, Any]:
    """Check the reader of a content, and compile its pattern.

    Args:
        name: Name of the reader.
        arguments: Its arguments.
        depth: Readers of values around it.

    Returns:
        The arguments, ready for `value_of`.

    Raises:
        ValueError: They are malformed; the message says what is allowed.
    """
    if not isinstance(name, str) or name not in _ARGUMENTS:
        raise ValueError(f"`content` {name!r} is none of {', '.join(_ARGUMENTS)}")
    if not isinstance(arguments, Mapping):
        raise ValueError("`content_args` is no mapping")
    if depth > _MOST_NESTED:
        raise ValueError(f"`value_parser` is nested more than {_MOST_NESTED} deep")
    checked = dict(arguments)
    for key in checked:
        if key not in _ARGUMENTS[name]:
            raise ValueError(f"`content_args` of {name!r} has no {key!r}")
    if name == "xml-inline":
        pattern = Pattern.compile(checked.get("tag_pattern", ""))
        if not {"key", "value"} <= pattern.groups:
            raise ValueError("`tag_pattern` needs the named groups `key` and `value`")
        checked["tag_pattern"] = pattern
    if name == "json":
        _check_delimiters(checked.get("string_delims", []))
    for key in ("line_sep", "kv_sep"):
        if not isinstance(checked.get(key, "x"), str) or not checked.get(key, "x"):
            raise ValueError(f"`{key}` is no text")
    inner = checked.get("value_parser")
    if inner is not None:
        if not isinstance(inner, Mapping):
            raise ValueError("`value_parser` is no mapping")
        own = inner.get("name", "text")
        checked["value_parser"] = own, check_content(own, inner.get("args", {}), depth + 1)
    return checked


def _check_delimiters(given: object) -> None:
    pairs = given if isinstance(given, list | tuple) else [given]
    for pair in pairs:
        if (
            not isinstance(pair, list | tuple)
            or len(pair) != 2
            or not all(isinstance(each, str) and each for each in pair)
        ):
            raise ValueError("`string_delims` is no list of pairs of texts")


def value_of(text: str, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the value of a region.

    Args:
        text: Text of the region.
        name: Name of its reader.
        arguments: What `check_content` returned.

    Raises:
        ValueError: The text is not of this kind.
    """
    return _READERS[name](text, arguments)


def check_transform(transform: Any, depth: int = 0) -> None:
    """Check that each text of a shape is a placeholder, or has none.

    Raises:
        ValueError: A text mixes both.
    """
    if depth > _MOST_NESTED:
        raise ValueError(f"`transform` is nested more than {_MOST_NESTED} deep")
    if isinstance(transform, Mapping | list | tuple):
        entries = transform.values() if isinstance(transform, Mapping) else transform
        for each in entries:
            check_transform(each, depth + 1)
    elif isinstance(transform, str) and _PLACEHOLDER.search(transform):
        if _PLACEHOLDER.fullmatch(transform) is None:
            raise ValueError(f"`transform` mixes a placeholder with other text: {transform!r}")


def shaped(value: Any, transform: Any, captures: Mapping[str, str], *, each: bool) -> Any:
    """Give a value the shape that a field declares.

    Args:
        value: Value of the region.
        transform: The shape.
        captures: Named groups of the region's delimiters.
        each: The value is a list of mappings, whose keys the placeholders of each may name.

    Raises:
        ValueError: A placeholder names what is not there, or the value is no such list.
    """
    if not each:
        return _filled(transform, {**captures, "content": value})
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError("`transform_each` needs a list of mappings, and this is none")
    return [_filled(transform, {**captures, **one}) for one in value]


def _filled(transform: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(transform, Mapping):
        return {key: _filled(one, values) for key, one in transform.items()}
    if isinstance(transform, list | tuple):
        return [_filled(one, values) for one in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = values
    for key in found[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"the placeholder {transform!r} finds no {key!r}")
        value = value[key]
    return value


def _text(text: str, arguments: Mapping[str, Any]) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _number(kind: Callable[[str], int | float]) -> Callable[[str, Mapping[str, Any]], int | float]:
    return lambda text, arguments: kind(_text(text, arguments))


def _truth(text: str, arguments: Mapping[str, Any]) -> bool:
    return _text(text, arguments).lower() in ("true", "1")


def _json(text: str, arguments: Mapping[str, Any]) -> Any:
    """Read JSON, perhaps with bare keys and with strings between other marks."""
    pairs = arguments.get("string_delims") or []
    pieces = _split_strings(text, pairs) if pairs else [(text, False)]
    plain = "".join(
        json.dumps(piece)
        if is_string
        else _BARE_KEY.sub(r'"\1":', piece)
        if arguments.get("unquoted_keys")
        else piece
        for piece, is_string in pieces
    )
    try:
        return json.loads(plain)
    except (ValueError, RecursionError) as error:
        if arguments.get("allow_non_json"):
            return _text(text, arguments)
        raise ValueError(f"no JSON: {error}: {text[:80]!r}") from None


def _split_strings(text: str, pairs: list[list[str]]) -> list[tuple[str, bool]]:
    """Split a text into strings between marks, and what stands around them."""
    pieces, place = list[tuple[str, bool]](), 0
    while True:
        found = [
            (begin, -len(opening), opening, closing)
            for opening, closing in pairs
            if (begin := text.find(opening, place)) >= 0
            and text.find(closing, begin + len(opening)) >= 0
        ]
        if not found:
            return [*pieces, (text[place:], False)]
        begin, _, opening, closing = min(found)
        inner = begin + len(opening)
        end = text.find(closing, inner)
        pieces += [(text[place:begin], False), (text[inner:end], True)]
        place = end + len(closing)


def _inner(text: str, parser: tuple[str, Mapping[str, Any]] | None) -> Any:
    return text if parser is None else value_of(text, *parser)


def _tags(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read tags in a row, each an entry."""
    found: dict[str, Any] = {}
    merged: set[str] = set()
    for match in arguments["tag_pattern"].matches(text):
        if "key" not in match.groups:
            raise ValueError("a tag has no key")
        key = match.groups["key"]
        value = _inner(match.groups.get("value", ""), arguments.get("value_parser"))
        if key in found and arguments.get("merge_duplicates"):
            if key not in merged:
                found[key] = [found[key]]
                merged.add(key)
            found[key].append(value)
        else:
            found[key] = value
    return found


def _lines(text: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read a key and a value on each line; others are left out."""
    found = {}
    separator = arguments.get("kv_sep", ":")
    for line in text.split(arguments.get("line_sep", "\n")):
        key, middle, value = _text(line, arguments).partition(separator)
        if middle:
            inner = _inner(_text(value, arguments), arguments.get("value_parser"))
            found[_text(key, arguments)] = inner
    return found


_READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "text": _text,
    "int": _number(int),
    "float": _number(float),
    "bool": _truth,
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
}
