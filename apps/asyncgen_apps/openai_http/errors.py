"""Turns what went wrong into the API's error shape and an HTTP status.

Knows exceptions and JSON; not how a reply is sent.

====== =========================== ================================================================
status type                        when
====== =========================== ================================================================
400    ``invalid_request_error``   a field that is unknown, of a wrong type, or out of range
401    ``authentication_error``    no key, or a wrong one
404    ``invalid_request_error``   no such model or path
408    ``invalid_request_error``   the head or the body did not come in time
413    ``invalid_request_error``   the body is too large
414    ``invalid_request_error``   the query has too many parameters
415    ``invalid_request_error``   the body is compressed, or not in UTF-8
422    ``invalid_request_error``   the chat template refuses the messages
426    ``invalid_request_error``   the path is of WebSockets, and this is no handshake of one
429    ``rate_limit_error``        too many requests; ``Retry-After`` says when to come back
431    ``invalid_request_error``   the head of the request is too long
500    ``server_error``            a bug: the log has more
503    ``server_error``            the engine is dead or closed, the server leaves or is full
====== =========================== ================================================================
"""

from __future__ import annotations

import difflib
import json
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen import (
    ChatTemplateError,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    InvalidScoresError,
    OverloadedError,
)
from asyncgen_apps.openai_http.fields import names_at
from asyncgen_apps.openai_http.ranges import RANGES
from asyncgen_apps.openai_http.request_schema import NEUTRAL
from asyncgen_apps.websocket.errors import parameter_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel


_log = logging.getLogger("asyncgen.http")

INVALID = "invalid_request_error"
SERVER = "server_error"
LONG = "context_length_exceeded"
NO_OBJECT = "the body is not a JSON object: send one, and `Content-Type: application/json` with it"
RENAMED = {"num_return_sequences": "n", "stop_strings": "stop"}
"""Where the engine knows a field under another name than the API."""
LONGEST_WORD = 100


@dataclass(eq=False)
class ApiError(Exception):
    """An error as the client gets it.

    Attributes:
        status: HTTP status.
        message: The mistake, and the remedy.
        type: Kind of error, in the API's words.
        param: The field that is to blame, if one is.
        code: A word for programs.
        retry_after: Seconds after which another attempt may succeed.
    """

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None

    def __post_init__(self) -> None:
        """Give the exception its text."""
        super().__init__(self.message)

    def body(self) -> dict[str, object]:
        """Return the error as the API lays it out."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Headers that belong to the status."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        if self.status == 426:
            return {"upgrade": "websocket"}
        if self.retry_after is not None:
            return {"retry-after": str(max(1, math.ceil(self.retry_after)))}
        return {}


def from_exception(error: Exception, names: Mapping[str, str] | None = None) -> ApiError:
    """Say in the API's words what a request raised.

    Args:
        error: From the engine, or from anywhere; what is not expected becomes a 500 and is logged.
        names: Client's names of parameters that the engine names otherwise.

    Returns:
        The error.
    """
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            name = {**RENAMED, **(names or {})}.get(error.parameter, error.parameter)
            message = str(error)
            if name != error.parameter:
                message = message.replace(f"`{error.parameter}`", f"`{name}`")
            long = isinstance(error, ContextLengthError)
            return ApiError(400, message, param=name, code=LONG if long else None)
        case ChatTemplateError():
            return ApiError(422, str(error), param="messages", code="chat_template_refused")
        case InvalidScoresError() if error.processor is not None:
            blamed = parameter_of(error) or ""
            blamed = (names or {}).get(blamed, blamed)
            return ApiError(400, str(error), param=blamed or None, code="no_token_left")
        case OverloadedError(is_degraded=True):
            return ApiError(503, str(error), SERVER, code="degraded", retry_after=error.retry_after)
        case OverloadedError():
            return ApiError(
                429,
                str(error),
                "rate_limit_error",
                code="overloaded",
                retry_after=error.retry_after,
            )
        case EngineDiedError() | EngineClosedError():
            return ApiError(503, str(error), SERVER, code="engine_unavailable", retry_after=5)
    _log.error("a request failed", exc_info=error)
    return ApiError(500, f"{type(error).__name__}: the server's log has more", SERVER)


def from_validation(
    errors: Sequence[Mapping[str, object]], body: type[BaseModel] | None = None
) -> ApiError:
    """Name the first field that does not fit.

    Args:
        errors: Errors of pydantic, at least one.
        body: What the body should have been; suggests a name for one that is unknown.

    Returns:
        A 400. Of the alternatives of a field, each complaint is in the message.
    """
    located = [(_field_of(error), error) for error in errors]
    unknown = [entry for entry in located if entry[1].get("type") == "extra_forbidden"]
    # Where a field takes one thing or a list of them, a list that is too long says so itself.
    long = [entry for entry in located if entry[1].get("type") == "too_long"]
    field, error = (unknown or long or located)[0]
    if unknown:
        message = f"`{field}` is not supported by this server{_suggestion(error, body)}"
        return ApiError(400, message, param=field, code="unsupported_parameter")
    if error.get("type") == "json_invalid":
        return ApiError(400, "the body is not JSON in UTF-8", code="invalid_json")
    # Where it takes one thing or another, what each would have to be.
    same = [error] if long else [one for name, one in located if name == field]
    complaints = "; or ".join(dict.fromkeys(map(_complaint, same)))
    message = f"`{field}`: {complaints}" if field else NO_OBJECT
    missing = error.get("type") == "missing"
    is_number = any(error.get("type") in _OF_NUMBERS for error in same)
    if is_number and (allowed := _range_of(field, body)):
        value = error.get("input", _UNKNOWN)
        is_told = isinstance(value, str | int | float | None)
        message = f"`{field}`{f' is {_as_json(value)}' if is_told else ''}: {allowed}"
    return ApiError(
        400, message, param=field or None, code="missing_required_parameter" if missing else None
    )


_OF_NUMBERS = frozenset(
    """int_type float_type finite_number greater_than greater_than_equal less_than less_than_equal
    int_from_float int_parsing_size""".split()
)
"""Errors of pydantic about a number that is none, or out of its range."""

_UNKNOWN: object = object()


def _range_of(field: str, body: type[BaseModel] | None) -> str:
    """Return what a number must be, in the words of the library; empty if it has no range.

    Args:
        field: Its name.
        body: What the body should have been: elsewhere a field of the name may mean another thing.
    """
    known = body is not None and field in body.model_fields
    return str(RANGES[field](None)) if known and field in RANGES else ""


def _as_json(value: object) -> str:
    """Show a value as the client wrote it, shortened."""
    try:
        return clipped(json.dumps(value))
    except ValueError:  # thousands of digits
        return "a number of thousands of digits"


def _suggestion(error: Mapping[str, object], body: type[BaseModel] | None) -> str:
    """Return the end of a message about an unknown field: a name that is close to it."""
    location = error.get("loc")
    if body is None or not isinstance(location, tuple | list) or not location:
        return ""
    if location[-1] in NEUTRAL:  # spelled as the API has it
        return ""
    *parents, name = location[1:] if location[:1] == ("body",) else location
    names = sorted(names_at(body, parents))
    near = difflib.get_close_matches(str(name)[:LONGEST_WORD], names, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _complaint(error: Mapping[str, object]) -> str:
    text = str(error.get("msg", "not valid")).removeprefix("Value error, ")
    if len(text) > 1000:  # with a word of the client, and then what is allowed
        text = f"{clipped(text)}{text[-200:]}"
    return f"{text[:1].lower()}{text[1:]}"


def clipped(word: str) -> str:
    """Shorten a word of the client, which may be as long as a body."""
    return word if len(word) <= LONGEST_WORD else f"{word[:LONGEST_WORD]}…"


def _field_of(error: Mapping[str, object]) -> str:
    """Spell the field that an error is about; one that is unknown as the client spelled it."""
    location = error.get("loc")
    parts = list(location) if isinstance(location, tuple | list) else []
    if parts and error.get("type") == "extra_forbidden":
        path, word = _field(parts[:-1]), clipped(str(parts[-1]))
        return f"{path}.{word}" if path else word
    return _field(parts)


def _field(parts: list[object]) -> str:
    """Spell a location as the API does: ``messages[0].content``."""
    path = ""
    for part in parts[1:] if parts[:1] == ["body"] else parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif isinstance(part, str) and part.isidentifier():
            word = clipped(part)
            path += f".{word}" if path else word
        else:
            break  # from here on it names types, not fields
    return path
