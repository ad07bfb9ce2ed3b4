"""Limit the variables that a client gives to a chat template, over HTTP and WebSocket.

A template may use its variables in any way, for example write each of them at every message.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

MOST_VARIABLES = 32
MOST_CHARACTERS = 4096
"""Most characters of all variables together, as JSON."""


def too_large(variables: JsonValue) -> str | None:
    """Check the size of ``chat_template_kwargs``.

    Args:
        variables: Value that the client sent; the engine refuses other types than an object.

    Returns:
        The reason for a refusal; ``None`` if there are few and short variables.
    """
    if isinstance(variables, dict) and len(variables) > MOST_VARIABLES:
        return f"has {len(variables)} entries: at most {MOST_VARIABLES}"
    length = 0
    try:
        # Serialize piece by piece, to stop at the limit.
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
