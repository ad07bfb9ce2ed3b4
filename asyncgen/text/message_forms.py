"""Give messages the forms that chat templates read, one after the other until a template takes one.

Templates disagree about the name of the reasoning, about a content that is null, and about the
arguments of calls. Knows nothing of jinja and of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncgen.types import Message

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names of the reasoning of a message. The first that is given fills those that are not."""


_WRITTEN = "a content is null, and the template writes it"


class NullWrittenError(Exception):
    """A template writes a content that is null."""


class Null:
    """Content that is null: equal to ``None``, and an error where a template writes it.

    A template that tests for none can tell it from a text, and none writes the word "None".
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Null)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> NoReturn:
        raise NullWrittenError(_WRITTEN)

    __str__ = __repr__

    def __format__(self, form: str) -> NoReturn:
        raise NullWrittenError(_WRITTEN)


NULL = Null()


def is_none(value: object) -> bool:
    """Tell whether a template should take a value for none."""
    return value is None or isinstance(value, Null)


def message_forms(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    """Yield the forms of a conversation in the order in which a template should be given them.

    Fields that are ``None`` are left out, and the reasoning has all its names. A content that is
    null stays null in the first form, is left out in the next, and is empty in the third. Then
    arguments of calls are JSON text. In the last form, reasoning and content beside calls are one
    text, since some templates refuse to write both.

    Args:
        messages: Checked by :func:`~asyncgen.text.chat_template.check_messages`.
    """
    plain = [_with_reasoning(_without_nones(message)) for message in messages]
    contents: list[dict[str, Any]] = [{}]
    if any("content" not in message for message in plain):
        is_null = any("content" in message and message["content"] is None for message in messages)
        contents = [{"content": NULL}, {}, {"content": ""}]
        if not is_null:
            contents[:2] = contents[1::-1]
    has_mappings = any(map(_calls_with_mappings, plain))
    for is_written, content in product((False, True) if has_mappings else (False,), contents):
        filled = [{**content, **message} for message in plain]
        yield [_with_written_arguments(each) for each in filled] if is_written else filled
    joined = [_with_joined_reasoning(message) for message in plain]
    if joined != plain:
        yield joined


def _without_nones(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    given = next((message[name] for name in REASONING_FIELDS if name in message), None)
    return message if given is None else {**dict.fromkeys(REASONING_FIELDS, given), **message}


def _with_joined_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning, content = message.get(REASONING_FIELDS[0]), message.get("content")
    if not (message.get("tool_calls") and reasoning and isinstance(content, str) and content):
        return message
    kept = {name: value for name, value in message.items() if name != "content"}
    return {**kept, **dict.fromkeys(REASONING_FIELDS, f"{reasoning}\n{content}")}


def _calls_with_mappings(message: Message) -> bool:
    return any(
        isinstance(_function(call).get("arguments"), Mapping)
        for call in message.get("tool_calls") or ()
    )


def _with_written_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if not _calls_with_mappings(message):
        return message
    return {**message, "tool_calls": [_with_written(call) for call in message["tool_calls"]]}


def _with_written(call: Any) -> Any:
    function = _function(call)
    arguments = function.get("arguments")
    if not isinstance(arguments, Mapping):
        return call
    written = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": written}}


def _function(call: Any) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else {}
