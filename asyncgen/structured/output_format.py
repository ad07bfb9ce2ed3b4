"""Read the parameters that ask for structured output, such as ``json_schema`` or ``regex``.

Knows no tokenizer and no grammar engine.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from asyncgen.errors import InvalidRequestError, InWords, clip
from asyncgen.structured.response_model import adapter_of
from asyncgen.structured.schema_narrowing import narrow_schema
from asyncgen.structured.schema_support import (
    UnsupportedSchemaError,
    check_schema,
    check_size,
    ends_in_escape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


Kind: TypeAlias = Literal["json", "regex", "lark"]

PARAMETERS = ("json_schema", "json_object", "response_model", "regex", "grammar", "choice")
"""Parameters that ask for structured output; a request may have one."""

OUTPUT_FORMATS = frozenset(PARAMETERS)

MOST_CHARACTERS = 2**16
"""Most characters of a schema or a grammar: other requests wait for the thread that reads it."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Format that an answer must have.

    Attributes:
        parameter: Name of the parameter that asked for it, for errors.
        kind: Kind of ``source``: a JSON schema as JSON, a regular expression, or a Lark grammar.
        source: The schema, expression or grammar.
        after: Text after which the format begins, such as the end of the reasoning; until then
            the answer is free. Empty if it begins at once.
        others: Further texts after which it begins as well.
        at_start: Texts after which it begins at the very beginning of the answer.
        bare: Beginning of the format by which it begins without such a text, where nothing but
            white space stands before it. Empty for none.
        may_never_begin: An answer may end without that text.
        model: Class of the parsed answer; ``None`` for plain values of JSON, or the text itself.
    """

    parameter: str
    kind: Kind
    source: str
    after: str = ""
    may_never_begin: bool = False
    others: tuple[str, ...] = ()
    at_start: tuple[str, ...] = ()
    bare: str = ""
    model: type | None = None

    @property
    def is_json(self) -> bool:
        """True if an answer of this format is a JSON value."""
        return self.kind == "json"


_MOST_WEIGHT = 2_000**2
"""Most squares of properties in the objects of a schema, since any optional one may be left out."""


def given_output_formats(params: Mapping[str, Any]) -> list[str]:
    """Return the names of the given parameters that ask for structured output."""
    found = [name for name in PARAMETERS if params.get(name) is not None]
    return [name for name in found if name != "json_object" or params[name]]


def read_output_format(params: Mapping[str, Any]) -> OutputFormat | None:
    """Read the output format of a request.

    Args:
        params: Parameters by name, each checked already.

    Returns:
        The format; ``None`` without structured output.

    Raises:
        InvalidRequestError: Several parameters, an invalid schema, or a class without a schema.
    """
    names = given_output_formats(params)
    if not names:
        return None
    name = names[0]
    if len(names) > 1:
        allowed = f"also `{names[1]}` is given; an answer has one format"
        raise InvalidRequestError(name, params[name], allowed)
    output_format = _READERS[name](params[name])
    if len(output_format.source) > MOST_CHARACTERS:
        allowed = f"{len(output_format.source)} characters; at most {MOST_CHARACTERS}"
        raise InvalidRequestError(name, clip(output_format.source, 61), allowed)
    try:
        output_format.source.encode()
    except UnicodeEncodeError as error:
        allowed = f"no Unicode text: a lone surrogate at position {error.start}"
        raise InvalidRequestError(name, params[name], allowed) from error
    return output_format


def _of_schema(value: Any, parameter: str = "json_schema") -> OutputFormat:
    try:
        check_size(value)
    except UnsupportedSchemaError as error:
        raise InvalidRequestError(parameter, value, str(error)) from None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(parameter, value, f"no JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise InvalidRequestError(parameter, value, "a JSON schema, which is an object")
    try:
        if _schema_cost(value) > _MOST_WEIGHT:
            allowed = f"too many properties: at most {math.isqrt(_MOST_WEIGHT)} of one object"
            raise InvalidRequestError(parameter, InWords("given"), allowed)
        check_schema(value)
        source = json.dumps(narrow_schema(value), ensure_ascii=False, allow_nan=False)
    except InvalidRequestError:
        raise
    except UnsupportedSchemaError as error:
        raise InvalidRequestError(parameter, InWords("given"), str(error)) from None
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(parameter, InWords("given"), f"no JSON: {error}") from error
    return OutputFormat(parameter, "json", source)


def _schema_cost(schema: Any) -> int:
    """Sum the squares of the numbers of properties; each unit takes a tenth of a microsecond."""
    if isinstance(schema, list):
        return sum(map(_schema_cost, schema))
    if not isinstance(schema, dict):
        return 0
    properties = schema.get("properties")
    own = len(properties) ** 2 if isinstance(properties, dict) else 0
    return own + sum(map(_schema_cost, schema.values()))


def _of_model(value: Any) -> OutputFormat:
    schema = adapter_of(value).json_schema()
    _forbid_other_keys(schema)
    return dataclasses.replace(_of_schema(schema, "response_model"), model=value)


def _forbid_other_keys(schema: Any) -> None:
    """Allow only the keys of a class, since it would drop others."""
    inner = schema.values() if isinstance(schema, dict) else schema
    for each in inner:
        if isinstance(each, dict | list):
            _forbid_other_keys(each)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)


def _of_regex(value: str) -> OutputFormat:
    if ends_in_escape(value):
        allowed = "it ends in a backslash that escapes nothing; a backslash itself is two of them"
        raise InvalidRequestError("regex", value, allowed)
    return OutputFormat("regex", "regex", value)


def _of_choice(value: Any) -> OutputFormat:
    size = sum(map(len, value))
    if size > MOST_CHARACTERS:
        allowed = f"{size} characters; at most {MOST_CHARACTERS}"
        raise InvalidRequestError("choice", value, allowed)
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    return OutputFormat("choice", "lark", f"start: {texts}")


_READERS: dict[str, Callable[[Any], OutputFormat]] = {
    "json_schema": _of_schema,
    "json_object": lambda _: OutputFormat("json_object", "json", '{"type": "object"}'),
    "response_model": _of_model,
    "regex": _of_regex,
    "grammar": lambda value: OutputFormat("grammar", "lark", value),
    "choice": _of_choice,
}
