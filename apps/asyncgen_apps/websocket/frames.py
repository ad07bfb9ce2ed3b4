"""Convert text frames to messages, and messages to frames.

A frame that is not valid gives a fault that names the field; reading never raises. Knows no
connection.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from asyncgen_apps.serving.sliced_json import (
    RepeatedKeyError,
    TooManyNested,
    parse,
    shown_key,
    unique_keys,
)
from asyncgen_apps.serving.time_slices import slices
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.messages import CLIENT_MESSAGE, Generate, Resume, Wanted
from asyncgen_apps.websocket.params import check_params

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen_apps.websocket.messages import ClientMessage


_TYPES = "auth, generate, cancel, resume, ping"
_MAX_ID = 64
_MOST_NAMES = 64
"""Most field names that are checked in a large message; no valid message has as many."""
_MOST_PARAMS = 256
"""Most parameters of a large message; no valid message has as many."""


def read(frame: str | bytes) -> ClientMessage | Fault:
    """Read a frame of a client.

    Args:
        frame: Text frame as ``str``; a binary one, which the protocol does not have, as ``bytes``.
    """
    if not isinstance(frame, str):
        return Fault("unsupported_data", "a message is a text frame, and this one is binary")
    try:
        message = CLIENT_MESSAGE.validate_json(frame)
    except ValidationError as error:
        return _describe(error, partial(from_json, frame))
    # Each entry of an object has a colon. Where the text has no more colons than the message has
    # entries, no key is there twice, and the text need not be read again.
    colons = frame.count(":")
    if colons == len(message.model_fields_set) or colons == _count_entries(message):
        return message
    return _repeated(frame) or message


def _repeated(frame: str) -> Fault | None:
    """Find a key that is twice in one object of a valid message."""
    try:
        json.loads(frame, object_pairs_hook=unique_keys)
    except RepeatedKeyError as error:
        return Fault("invalid_json", error.msg)
    except (ValueError, RecursionError):
        pass  # the validation took it
    return None


def _count_entries(value: object) -> int:
    """Count the entries of all objects in a message, or in a part of one."""
    if isinstance(value, dict):
        return len(value) + sum(map(_count_entries, value.values()))
    if isinstance(value, list):
        return sum(map(_count_entries, value))
    if isinstance(value, Wanted):
        inner = _count_entries(value.params) + _count_entries(value.messages)
        return len(value.model_fields_set) + inner
    if isinstance(value, Resume):
        return len(value.model_fields_set) + _count_entries(value.request)
    return 0


def read_large(frame: str) -> ClientMessage | Fault:
    """Read a large text frame on a worker thread, in time slices, and check its parameters."""
    with slices():
        try:
            found = parse(frame)
        except TooManyNested as error:
            return Fault("invalid_message", f"the message is too large: {error}")
        except RepeatedKeyError as error:
            return Fault("invalid_json", error.msg)
        except (ValueError, RecursionError) as error:
            return Fault("invalid_json", f"not JSON: {error}")
        return _checked(found)


def _checked(found: object) -> ClientMessage | Fault:
    """Make a message of parsed JSON.

    Long parts, the parameters and the chat messages, skip the validation by pydantic, which would
    hold the interpreter too long.
    """
    skipped: dict[str, Any] = {}
    if isinstance(found, dict):
        if len(found) > _MOST_NAMES:  # the error names one unknown field only
            named = {name: found[name] for name in ("type", "id") if name in found}
            found = {**named, **dict(islice(found.items(), _MOST_NAMES))}
        repeated = found.get("request")
        if isinstance(repeated, dict) and len(repeated) > _MOST_NAMES:
            repeated = found["request"] = dict(islice(repeated.items(), _MOST_NAMES))
        wanted = repeated if isinstance(repeated, dict) else found
        params, messages = wanted.get("params"), wanted.get("messages")
        if isinstance(params, dict):
            skipped["params"], wanted["params"] = params, {}
        if isinstance(messages, list) and set(map(type, messages)) == {dict}:
            skipped["messages"], wanted["messages"] = messages, [{}]
    try:
        message = CLIENT_MESSAGE.validate_python(found)
    except ValidationError as error:
        return _describe(error, lambda: found)
    if isinstance(message, Generate):
        message = message.model_copy(update=skipped)
        params = message.params
    elif isinstance(message, Resume) and message.request is not None:
        request = message.request.model_copy(update=skipped)
        message = message.model_copy(update={"request": request})
        params = request.params
    else:
        return message
    if len(params) > _MOST_PARAMS:
        text = f"`params` has {len(params)} entries: at most {_MOST_PARAMS}"
        return Fault("invalid_message", text, param="params", id=message.id)
    fault = check_params(params)
    return message if fault is None else replace(fault, id=message.id)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the text frame of a message, in UTF-8; NaN and infinity become ``null``."""
    return to_json(message, inf_nan_mode="null")


def _describe(error: ValidationError, content: Callable[[], object]) -> Fault:
    """Describe the first error of a message; its content is parsed only to find the id."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    # An unknown name explains more than the field that is missing because of it.
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    kind, text = first["type"], first["msg"]
    if kind == "json_invalid":
        return Fault("invalid_json", f"not JSON: {text.removeprefix('Invalid JSON: ')}")
    if kind == "union_tag_invalid":
        return Fault("unknown_type", f"`type` is none of {_TYPES}")
    if kind == "union_tag_not_found":
        return Fault("invalid_message", f"`type` is missing: one of {_TYPES}")
    request_id = _id(content())
    if kind == "extra_forbidden":
        path = _path(first["loc"][:-1])
        name = shown_key(str(first["loc"][-1]))
        path = f"{path}.{name}" if path else name
        return Fault("invalid_message", f"`{path}` is unknown here", param=path, id=request_id)
    path = _path(first["loc"])
    text = text.removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    message = f"`{path}`: {text}" if path else text
    return Fault("invalid_message", message, param=path or None, id=request_id)


def _path(location: tuple[int | str, ...]) -> str:
    """Return a location as text: ``messages[0].role``. Its first part is the message's type."""
    path = ""
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and len(part) <= _MAX_ID:
            path += f".{part}" if path else part
        else:
            break  # the rest names types, or is text of the client
    return path


def _id(message: object) -> str | None:
    """Return the id of the request that a refused message would start, if it has a valid one."""
    if not isinstance(message, dict) or message.get("type") not in ("generate", "resume"):
        return None
    found = message.get("id")
    return found if isinstance(found, str) and 0 < len(found) <= _MAX_ID else None
