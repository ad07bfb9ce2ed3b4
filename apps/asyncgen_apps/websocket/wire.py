"""Text frames to messages and back.

What is wrong with a frame is said in the protocol's words, with the place where it is; a frame
never raises. Knows no connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from asyncgen_apps.websocket.failures import Fault
from asyncgen_apps.websocket.messages import CLIENT_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen_apps.websocket.messages import ClientMessage


_TYPES = "auth, generate, cancel, resume, ping"
_MAX_ID = 64


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
        return _describe(error, frame)


def encode(message: Mapping[str, Any]) -> bytes:
    """Lay a message out as a text frame, in UTF-8; what is not a number becomes ``null``."""
    return to_json(message, inf_nan_mode="null")


def _describe(error: ValidationError, frame: str) -> Fault:
    """Name the first thing that does not fit."""
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
        return Fault("invalid_message", f"`{place}` is unknown here", param=place, id=_id(frame))
    told = told.removeprefix("Value error, ")
    told = told[:1].lower() + told[1:]
    message = f"`{place}`: {told}" if place else told
    return Fault("invalid_message", message, param=place or None, id=_id(frame))


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


def _id(frame: str) -> str | None:
    """The request that a message meant to begin, if it says so in a usable way."""
    message = from_json(frame)
    if not isinstance(message, dict) or message.get("type") not in ("generate", "resume"):
        return None
    found = message.get("id")
    return found if isinstance(found, str) and 0 < len(found) <= _MAX_ID else None
