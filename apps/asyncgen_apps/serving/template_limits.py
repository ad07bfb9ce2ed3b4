"""Limit the variables that a client gives to a chat template, over HTTP and WebSocket.

A template can do with its variables what it likes, and write each of them at every message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

MOST_VARIABLES = 32
MOST_CHARACTERS = 4096
"""Of all variables together, as JSON."""


def too_large(variables: JsonValue) -> str | None:
    """Say what is too much about ``chat_template_kwargs``.

    Args:
        variables: As the client sent them; what is no object is the engine's to refuse.

    Returns:
        A reason in words; ``None`` where they are few and short.
    """
    if isinstance(variables, dict) and len(variables) > MOST_VARIABLES:
        return f"has {len(variables)} entries: at most {MOST_VARIABLES}"
    length = 0
    try:
        # Piece by piece: nobody looks behind what is too much.
        for piece in json.JSONEncoder(ensure_ascii=False).iterencode(variables):
            piece.encode()
            length += len(piece)
            if length > MOST_CHARACTERS:
                return f"is too long: at most {MOST_CHARACTERS} characters as JSON"
    except UnicodeEncodeError:
        return "is not Unicode: it holds a lone surrogate"
    except (RecursionError, ValueError):
        return "is nested too deep, or holds a number of thousands of digits"
    return None
