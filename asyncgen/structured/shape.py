"""What an answer must look like, as it was asked for: one of several parameters, made plain.

Knows no tokenizer and no engine of grammars.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from asyncgen.errors import InvalidRequestError

Kind: TypeAlias = Literal["json", "regex", "lark"]

PARAMETERS = ("json_schema", "json_object", "response_model", "regex", "grammar", "choice")
"""Each of them asks for a shape; a request may have one."""

MOST_CHARACTERS = 2**18
"""Of a schema or a grammar: it is read on a thread that others wait for."""

_REMEDY = "pip install 'asyncgen[structured]'"


@dataclass(frozen=True, slots=True)
class Shape:
    """What an answer must look like.

    Attributes:
        parameter: Name of the parameter that asked for it, which errors name.
        kind: What ``source`` is: a JSON schema as JSON, a regular expression, or a Lark grammar.
        source: The schema, expression or grammar.
        after: A text behind which the shape begins, such as the end of the reasoning; until then
            the answer is free. Empty where it begins at once.
        may_never_begin: Whether an answer may end before that text came.
        model: What the answer is turned into in the end; ``None`` for plain values of JSON, or
            the text itself.
    """

    parameter: str
    kind: Kind
    source: str
    after: str = ""
    may_never_begin: bool = False
    model: type | None = None

    @property
    def is_json(self) -> bool:
        """Whether an answer of this shape is a JSON value."""
        return self.kind == "json"


def given_shapes(params: Mapping[str, Any]) -> list[str]:
    """Names of the parameters that ask for a shape; ``None`` and ``False`` do not."""
    return [name for name in PARAMETERS if params.get(name) not in (None, False)]


def read_shape(params: Mapping[str, Any]) -> Shape | None:
    """Read what a request asks for.

    Args:
        params: Parameters by name, each held to its own rule already.

    Returns:
        The shape; ``None`` where none was asked for.

    Raises:
        InvalidRequestError: Several shapes, one that is none, or a class that has no schema.
    """
    names = given_shapes(params)
    if not names:
        return None
    name = names[0]
    if len(names) > 1:
        allowed = f"also `{names[1]}` is given; an answer has one shape"
        raise InvalidRequestError(name, params[name], allowed)
    shape = _READERS[name](params[name])
    if len(shape.source) > MOST_CHARACTERS:
        allowed = f"{len(shape.source)} characters; at most {MOST_CHARACTERS}"
        raise InvalidRequestError(name, f"{shape.source[:60]}…", allowed)
    try:
        shape.source.encode()
    except UnicodeEncodeError as error:
        allowed = f"no Unicode text: a lone surrogate at position {error.start}"
        raise InvalidRequestError(name, params[name], allowed) from error
    return shape


def _of_schema(value: Any, parameter: str = "json_schema") -> Shape:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(parameter, value, f"no JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise InvalidRequestError(parameter, value, "a JSON schema, which is an object")
    try:
        source = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(parameter, value, f"no JSON: {error}") from error
    return Shape(parameter, "json", source)


def _of_object(value: bool) -> Shape:
    return Shape("json_object", "json", '{"type": "object"}')


def _of_model(value: Any) -> Shape:
    schema = _adapter(value).json_schema()
    return dataclasses.replace(_of_schema(schema, "response_model"), model=value)


def _of_regex(value: str) -> Shape:
    return Shape("regex", "regex", value)


def _of_grammar(value: str) -> Shape:
    return Shape("grammar", "lark", value)


def _of_choice(value: Any) -> Shape:
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    return Shape("choice", "lark", f"start: {texts}")


_READERS: dict[str, Callable[[Any], Shape]] = {
    "json_schema": _of_schema,
    "json_object": _of_object,
    "response_model": _of_model,
    "regex": _of_regex,
    "grammar": _of_grammar,
    "choice": _of_choice,
}


def _adapter(model: Any) -> Any:
    """What pydantic makes of a class: its schema, and its checks.

    Raises:
        InvalidRequestError: It is no class that pydantic knows, or there is no pydantic.
    """
    try:
        from pydantic import BaseModel, TypeAdapter
        from pydantic.errors import PydanticUserError
    except ImportError as error:
        raise InvalidRequestError("response_model", model, f"needs pydantic: {_REMEDY}") from error
    is_class = isinstance(model, type)
    if not is_class or not (issubclass(model, BaseModel) or dataclasses.is_dataclass(model)):
        raise InvalidRequestError("response_model", model, "a pydantic model or a dataclass")
    try:
        return TypeAdapter(model)
    except (PydanticUserError, NameError) as error:
        raise InvalidRequestError("response_model", model, f"it has no schema: {error}") from error


def parse(shape: Shape, text: str) -> Any:
    """Turn a whole answer into the value that it stands for.

    Args:
        shape: What it looks like.
        text: The answer, complete.

    Returns:
        An object of the class that was asked for, a plain value of JSON, or the text.

    Raises:
        ValueError: The class refuses the value, by a rule that no schema can say.
    """
    if shape.after and shape.after in text:
        text = text.partition(shape.after)[2].lstrip()
    if shape.model is not None:
        return _adapter(shape.model).validate_json(text)
    return json.loads(text) if shape.is_json else text
