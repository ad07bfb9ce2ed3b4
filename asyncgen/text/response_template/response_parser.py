"""Make a message of an answer, at once or as it grows, by a response template."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.text.response_template.contents import STREAMED, shaped, value_of
from asyncgen.text.response_template.regions import RegionSplitter, Step
from asyncgen.text.response_template.template import read_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen.text.response_template.regions import Change
    from asyncgen.text.response_template.template import Field, ResponseTemplate

_NO_PREFIX = (
    "give the prompt, since a chat template may have opened a part of the message there; for an"
    ' answer that is the whole message give `prefix=""`'
)


class ResponseParser:
    """Parser of one answer, as transformers has it.

    `feed` and `finalize` return events: mappings with ``type`` (``region_open``, ``region_chunk``
    or ``region_close``), ``field``, and ``text`` with ``dirty``, or ``value``.

    Attributes:
        initial_events: Events of the part of the message that the prompt has.
    """

    def __init__(
        self,
        response_template: Mapping[str, Any] | ResponseTemplate,
        prefix: str | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin behind a prompt.

        Args:
            response_template: The declaration.
            prefix: Text of the prompt; ``""`` for an answer that is the whole message.
            tools: Tools that may be called; texts among their arguments get the declared types.

        Raises:
            InvalidRequestError: The template is malformed, or ``prefix`` is missing.
        """
        self._template = read_template(response_template)
        if prefix is None:
            raise InvalidRequestError("prefix", prefix, _NO_PREFIX)
        self._properties = dict(_declared(tools or ()))
        self._splitter = RegionSplitter(self._template)
        self._body: list[str] = []
        self._message: dict[str, Any] = copy.deepcopy(dict(self._template.defaults))
        self._is_over = False
        start = self._template.behind_anchor(prefix)
        self.initial_events = self._events(self._splitter.put(start)) if start else []

    def feed(self, text: str) -> list[dict[str, Any]]:
        """Take more text; return the events that are certain by now.

        Raises:
            RuntimeError: The answer is complete.
            InvalidRequestError: A region has no value of its kind.
        """
        self._check_open()
        return self._events(self._splitter.put(text))

    def finalize(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Complete the answer; return the message and the last events.

        Raises:
            RuntimeError: It was complete.
            InvalidRequestError: A region has no value of its kind, or a field is missing.
        """
        self._check_open()
        self._is_over = True
        events = self._events(self._splitter.finish())
        fields = self._template.fields.values()
        missing = [each.name for each in fields if not each.is_optional]
        missing = [name for name in missing if name not in self._message]
        if missing:
            allowed = f"the answer has no {', '.join(missing)}, which the template requires"
            raise InvalidRequestError("response", None, allowed)
        kept = self._template.defaults
        message = {
            key: value
            for key, value in self._message.items()
            if key in kept or (value is not None and value not in ("", [], {}))
        }
        return message, events

    def _check_open(self) -> None:
        if self._is_over:
            raise RuntimeError("the answer is complete")

    def _events(self, changes: Iterable[Change]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        for step, field, text, captures in changes:
            if field is None:
                continue
            if step is Step.OPEN:
                self._body = []
                events.append({"type": "region_open", "field": field.name})
            elif step is Step.CHUNK:
                self._body.append(text)
                dirty = field.content not in STREAMED
                told = {"field": field.name, "text": text, "dirty": dirty}
                events.append({"type": "region_chunk", **told})
            else:
                value = typed(field_value(field, "".join(self._body), captures), self._properties)
                self._keep(field, value)
                events.append({"type": "region_close", "field": field.name, "value": value})
        return events

    def _keep(self, field: Field, value: Any) -> None:
        """Put the value of a region into the message."""
        if field.join is not None:
            if not isinstance(value, str):
                raise InvalidRequestError(
                    "response", value, f"`join` of {field.name!r} takes texts"
                )
            before = self._message.get(field.name)
            value = value if before is None else before + field.join + value
        elif field.repeats:
            value = [*self._message.get(field.name, ()), value]
        self._message[field.name] = value


def parse_response(
    text: str,
    response_template: Mapping[str, Any] | ResponseTemplate,
    *,
    prefix: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Parse a whole answer.

    Args:
        text: The answer.
        response_template: The declaration.
        prefix: As for `ResponseParser`.
        tools: As for `ResponseParser`.

    Returns:
        The message.

    Raises:
        InvalidRequestError: As `ResponseParser` and its methods.
    """
    parser = ResponseParser(response_template, prefix, tools=tools)
    parser.feed(text)
    return parser.finalize()[0]


def field_value(field: Field, text: str, captures: Mapping[str, str]) -> Any:
    """Return the value that a region adds to its field.

    Args:
        field: The field.
        text: Text of the region.
        captures: Named groups of its delimiters.

    Raises:
        InvalidRequestError: The text is not of the declared kind.
    """
    try:
        value = value_of(text, field.content, field.content_args)
        if field.transform is None:
            return value
        return shaped(value, field.transform, captures, each=field.transforms_each)
    except ValueError as error:
        raise InvalidRequestError("response", text, f"the field {field.name!r}: {error}") from None


def typed(value: Any, properties: Mapping[str, Mapping[str, Any]]) -> Any:
    """Give texts among the arguments of calls the types that their tool declares.

    Args:
        value: Value of a region; calls are mappings with ``function``, or a list of them.
        properties: Schemas of the arguments of each tool.

    Returns:
        The same, with new arguments in calls of these tools.
    """
    if isinstance(value, list):
        return [typed(each, properties) for each in value]
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return value
    schemas = properties.get(function.get("name", ""), {}) if properties else {}
    arguments = {
        key: _typed(each, kinds) if key in schemas and (kinds := _kinds(schemas[key])) else each
        for key, each in function["arguments"].items()
    }
    return {**value, "function": {**function, "arguments": arguments}}


def _declared(tools: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the name of each tool and the schemas of its arguments."""
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError("tools", tool, "give JSON schemas of functions")
        parameters = function.get("parameters")
        own = parameters.get("properties") if isinstance(parameters, Mapping) else None
        yield function["name"], own if isinstance(own, Mapping) else {}


def _kinds(schema: Any) -> list[str]:
    """List the types that a schema names, in its order."""
    if not isinstance(schema, Mapping):
        return []
    given = schema.get("type")
    kinds = [given] if isinstance(given, str) else [*(given or ())]
    for word in ("anyOf", "oneOf"):
        for choice in schema.get(word) or ():
            kinds += _kinds(choice)
    if schema.get("nullable") and "null" not in kinds:
        kinds.append("null")
    return [kind for kind in kinds if isinstance(kind, str)]


def _typed(value: Any, kinds: Sequence[str]) -> Any:
    """Return a text as the first of the types that it is written in; others stay as they are."""
    if isinstance(value, list) and "array" not in kinds:
        return [_typed(each, kinds) if isinstance(each, str) else each for each in value]
    if not isinstance(value, str):
        return value
    for kind in kinds:
        try:
            return _READERS[kind](value)
        except (KeyError, ValueError, OverflowError, RecursionError):
            continue
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> int | float:
    number = float(text)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return int(number) if number.is_integer() and "." not in text else number


def _word(words: Mapping[str, Any], *, lower: bool) -> Any:
    def read(text: str) -> Any:
        return words[text.strip().lower() if lower else text.strip()]

    return read


def _container(kind: type) -> Any:
    def read(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError
        return value

    return read


_READERS: Mapping[str, Any] = {
    "integer": _integer,
    "number": _number,
    "boolean": _word({"true": True, "1": True, "false": False, "0": False}, lower=True),
    "null": _word({"null": None, "None": None}, lower=False),
    "object": _container(dict),
    "array": _container(list),
}
