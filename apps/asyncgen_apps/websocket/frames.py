"""Text frames to messages and back.

What is wrong with a frame is said in the protocol's words, with the place where it is; a frame
never raises. Knows no connection.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from asyncgen_apps.serving.sliced_json import TooManyNested, parse
from asyncgen_apps.serving.time_slices import slices
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.messages import CLIENT_MESSAGE, Generate, Resume
from asyncgen_apps.websocket.params import check_params

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen_apps.websocket.messages import ClientMessage


_TYPES = "auth, generate, cancel, resume, ping"
_MAX_ID = 64
_MOST_NAMES = 64
"""Names of a large message: more than any message has."""
_MOST_PARAMS = 256
"""The same of parameters."""


def read(frame: str | bytes) -> ClientMessage | Fault:
    """Read what a client sent.

    Args:
        frame: A text frame is a ``str``; ``bytes`` is a binary one, of which there are none.
    """
    if not isinstance(frame, str):
        return Fault("unsupported_data", "a message is a text frame, and this one is binary")
    try:
        return CLIENT_MESSAGE.validate_json(frame)
    except ValidationError as error:
        return _describe(error, partial(from_json, frame))


def read_large(frame: str) -> ClientMessage | Fault:
    """Read what a client sent on a worker thread, in slices, and look at its parameters.

    Args:
        frame: A text frame.
    """
    with slices():
        try:
            found = parse(frame)
        except TooManyNested as error:
            return Fault("invalid_message", f"the message is too large: {error}")
        except (ValueError, RecursionError) as error:
            return Fault("invalid_json", f"not JSON: {error}")
        return _checked(found)


def _checked(found: object) -> ClientMessage | Fault:
    """Make a message of JSON; of what may be long in it, each value is looked at by itself."""
    aside: dict[str, Any] = {}
    if isinstance(found, dict):
        if len(found) > _MOST_NAMES:  # of those that are unknown, one is told
            named = {name: found[name] for name in ("type", "id") if name in found}
            found = {**named, **dict(islice(found.items(), _MOST_NAMES))}
        again = found.get("request")
        if isinstance(again, dict) and len(again) > _MOST_NAMES:
            again = found["request"] = dict(islice(again.items(), _MOST_NAMES))
        wanted = again if isinstance(again, dict) else found
        params, messages = wanted.get("params"), wanted.get("messages")
        if isinstance(params, dict):
            aside["params"], wanted["params"] = params, {}
        if isinstance(messages, list) and set(map(type, messages)) == {dict}:
            aside["messages"], wanted["messages"] = messages, [{}]
    try:
        message = CLIENT_MESSAGE.validate_python(found)
    except ValidationError as error:
        return _describe(error, lambda: found)
    if isinstance(message, Generate):
        message = message.model_copy(update=aside)
        params = message.params
    elif isinstance(message, Resume) and message.request is not None:
        request = message.request.model_copy(update=aside)
        message = message.model_copy(update={"request": request})
        params = request.params
    else:
        return message
    if len(params) > _MOST_PARAMS:
        told = f"`params` has {len(params)} entries: at most {_MOST_PARAMS}"
        return Fault("invalid_message", told, param="params", id=message.id)
    fault = check_params(params)
    return message if fault is None else replace(fault, id=message.id)


def encode(message: Mapping[str, Any]) -> bytes:
    """Lay a message out as a text frame, in UTF-8; what is not a number becomes ``null``."""
    return to_json(message, inf_nan_mode="null")


def _describe(error: ValidationError, content: Callable[[], object]) -> Fault:
    """Name the first thing that does not fit in a content, which is parsed where it is JSON."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    # A name that does not exist says more than what is missing because of it.
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    kind, told = first["type"], first["msg"]
    if kind == "json_invalid":
        return Fault("invalid_json", f"not JSON: {told.removeprefix('Invalid JSON: ')}")
    if kind == "union_tag_invalid":
        return Fault("unknown_type", f"`type` is none of {_TYPES}")
    if kind == "union_tag_not_found":
        return Fault("invalid_message", f"`type` is missing: one of {_TYPES}")
    place = _place(first["loc"])
    if kind == "extra_forbidden":
        return Fault(
            "invalid_message", f"`{place}` is unknown here", param=place, id=_id(content())
        )
    told = told.removeprefix("Value error, ")
    told = told[:1].lower() + told[1:]
    message = f"`{place}`: {told}" if place else told
    return Fault("invalid_message", message, param=place or None, id=_id(content()))


def _place(location: tuple[int | str, ...]) -> str:
    """Spell a location: ``messages[0].role``. The first part is the message's type."""
    path = ""
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and len(part) <= _MAX_ID:
            path += f".{part}" if path else part
        else:
            break  # names types, or is the client's own text
    return path


def _id(message: object) -> str | None:
    """The request that a message meant to begin, if it says so in a usable way."""
    if not isinstance(message, dict) or message.get("type") not in ("generate", "resume"):
        return None
    found = message.get("id")
    return found if isinstance(found, str) and 0 < len(found) <= _MAX_ID else None
