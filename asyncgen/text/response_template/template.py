"""Read and check a ``response_template``, before any answer is read with it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from asyncgen.errors import InvalidRequestError
from asyncgen.text.response_template.contents import check_content, check_transform
from asyncgen.text.response_template.patterns import Literals, Pattern, PatternError

if TYPE_CHECKING:
    from collections.abc import Collection

Delimiter: TypeAlias = "Literals | Pattern"
"""Text that begins or ends a region."""

_TEMPLATE_KEYS = ("version", "defaults", "fields", "start_anchor", "start_anchor_pattern")
_FIELD_KEYS = (
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
    *("repeats", "join", "optional", "transform", "transform_each"),
)
_MOST_FIELDS = 64

MOST_SOURCE = 2**14
"""Characters of a declaration as JSON; those of models have about a thousand."""


@dataclass(frozen=True, slots=True)
class Field:
    """One key of the message, and the region of the answer that it is read from.

    Attributes:
        name: The key.
        open: What begins the region; ``None``: the text outside all other regions.
        close: What ends it; ``None``: the end of the answer.
        content: Name of the reader of its text.
        content_args: Arguments of that reader.
        repeats: Each region adds to a list.
        join: Text between the regions, which become one text; ``None``: they do not.
        is_optional: An answer may come without it.
        transform: Shape of the value, with placeholders; ``None``: the value itself.
        transforms_each: The value is a list, and each entry takes the shape.
    """

    name: str
    open: Delimiter | None
    close: Delimiter | None
    content: str = "text"
    content_args: Mapping[str, Any] = field(default_factory=dict)
    repeats: bool = False
    join: str | None = None
    is_optional: bool = True
    transform: Any = None
    transforms_each: bool = False


@dataclass(frozen=True, slots=True)
class ResponseTemplate:
    """A checked template.

    Attributes:
        anchor: Text behind which the message begins in a prompt.
        fields: Fields of the message by name.
        implicit: Field of the text outside all regions; ``None``: such text has no field.
        defaults: Content of every message.
        source: The declaration.
    """

    anchor: Delimiter
    fields: Mapping[str, Field]
    implicit: Field | None
    defaults: Mapping[str, Any]
    source: Mapping[str, Any]

    def behind_anchor(self, prompt: str) -> str:
        """Return the part of a prompt that belongs to the message; without an anchor, all of it."""
        if isinstance(self.anchor, Literals):
            ends = [prompt.rfind(text) + len(text) for text in self.anchor.texts if text in prompt]
            return prompt[max(ends, default=0) :]
        end = 0
        for found in self.anchor.matches(prompt):
            end = found.end
        return prompt[end:]


def read_template(source: object, parameter: str = "response_template") -> ResponseTemplate:
    """Read a template.

    Args:
        source: The declaration, as it stands in ``tokenizer_config.json``.
        parameter: Name for errors.

    Raises:
        InvalidRequestError: It is malformed, or has what is not read; names the field.
    """
    if isinstance(source, ResponseTemplate):
        return source
    if not isinstance(source, Mapping):
        _refuse(parameter, source, "a mapping with `start_anchor` and `fields`")
    _check_size(source, parameter)
    if source.get("version", 1) != 1:
        _refuse(f"{parameter}.version", source["version"], "1")
    _check_keys(source, _TEMPLATE_KEYS, parameter)
    defaults, raw = source.get("defaults", {}), source.get("fields", {})
    if not isinstance(defaults, Mapping):
        _refuse(f"{parameter}.defaults", defaults, "a mapping")
    if not isinstance(raw, Mapping) or not 0 < len(raw) <= _MOST_FIELDS:
        _refuse(f"{parameter}.fields", raw, f"a mapping of 1 to {_MOST_FIELDS} fields")
    fields = {name: _field(name, each, f"{parameter}.fields.{name}") for name, each in raw.items()}
    implicit = [each for each in fields.values() if each.open is None]
    if len(implicit) > 1:
        names = ", ".join(each.name for each in implicit)
        _refuse(f"{parameter}.fields", names, "at most one field without `open`")
    anchor = _delimiter(source, "start_anchor", "start_anchor_pattern", parameter)
    if anchor is None:
        _refuse(f"{parameter}.start_anchor", None, "a text, or `start_anchor_pattern`")
    first = implicit[0] if implicit else None
    return ResponseTemplate(anchor, fields, first, copy.deepcopy(dict(defaults)), source)


def _check_size(source: Mapping[str, Any], parameter: str) -> None:
    """Refuse a declaration that is too long to be compiled, or to be searched for at each token."""
    try:
        size = len(json.dumps(source, default=repr))
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(parameter, source, f"a mapping that can be written as JSON ({error})")
    if size > MOST_SOURCE:
        _refuse(parameter, f"a declaration of {size} characters", f"at most {MOST_SOURCE}")


def _field(name: str, source: object, parameter: str) -> Field:
    if not isinstance(source, Mapping):
        _refuse(parameter, source, "a mapping")
    _check_keys(source, _FIELD_KEYS, parameter)
    opening = _delimiter(source, "open", "open_pattern", parameter)
    if isinstance(opening, Pattern) and opening.may_be_empty:
        allowed = "it may match nothing, so a region would begin behind each that ends"
        _refuse(f"{parameter}.open_pattern", opening.source, allowed)
    closing = _delimiter(source, "close", "close_pattern", parameter)
    join, repeats = source.get("join"), source.get("repeats", False)
    for key in ("repeats", "optional", "transform_each"):
        if not isinstance(source.get(key, False), bool):
            _refuse(f"{parameter}.{key}", source[key], "true or false")
    if join is not None and not (isinstance(join, str) and repeats):
        _refuse(f"{parameter}.join", join, "a text, beside `repeats`")
    transform, each = source.get("transform"), source.get("transform_each", False)
    if each and transform is None:
        _refuse(f"{parameter}.transform_each", each, "it needs a `transform`")
    groups = (opening.groups if opening else frozenset()) | (
        closing.groups if closing else frozenset()
    )
    if groups and transform is None:
        allowed = "only a `transform` can use named groups; add one, or drop the names"
        _refuse(f"{parameter}.open_pattern", ", ".join(sorted(groups)), allowed)
    content, arguments = source.get("content", "text"), source.get("content_args", {})
    try:
        checked = check_content(content, arguments)
        check_transform(transform)
    except ValueError as error:
        _refuse(parameter, source, str(error))
    return Field(
        name=name,
        open=opening,
        close=closing,
        content=content,
        content_args=checked,
        repeats=repeats,
        join=join,
        is_optional=source.get("optional", True),
        transform=transform,
        transforms_each=each,
    )


def _delimiter(
    source: Mapping[str, Any], literal: str, pattern: str, parameter: str
) -> Delimiter | None:
    """Read a text, a list of texts, or an expression."""
    if literal in source and pattern in source:
        _refuse(f"{parameter}.{pattern}", source[pattern], f"give it or `{literal}`, not both")
    if literal in source:
        given = source[literal]
        texts = [given] if isinstance(given, str) else given
        is_list = isinstance(texts, list | tuple) and texts
        if not is_list or not all(isinstance(each, str) and each for each in texts):
            _refuse(f"{parameter}.{literal}", given, "a text, or a list of texts, none empty")
        return Literals(texts)
    if pattern in source:
        try:
            return Pattern.compile(source[pattern])
        except PatternError as error:
            _refuse(f"{parameter}.{pattern}", source[pattern], str(error))
    return None


def _check_keys(source: Mapping[str, Any], known: Collection[str], parameter: str) -> None:
    for key in source:
        if key not in known:
            _refuse(f"{parameter}.{key}", source[key], f"the keys are {', '.join(known)}")


def _refuse(parameter: str, value: object, allowed: str) -> NoReturn:
    raise InvalidRequestError(parameter, value, allowed)
