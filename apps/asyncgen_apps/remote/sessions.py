"""Name requests by their beginning, so that equal beginnings reach the same engine."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen import Prompt

CHARACTERS = 512
"""Of a text, what counts: more than a system message has in common with another's."""

IDS = 128

MESSAGES = 8


def session_of(prompt: Prompt, params: Mapping[str, Any]) -> str:
    """A digest of how a prompt begins: all turns of a conversation have the same.

    Args:
        prompt: Messages count up to the first of the user.
        params: A ``cache_salt`` keeps apart what does not share anyway.

    Returns:
        32 hexadecimal digits.
    """
    if isinstance(prompt, str):
        beginning: Any = prompt[:CHARACTERS]
    elif prompt and not isinstance(prompt[0], int):
        beginning = []
        for message in prompt[:MESSAGES]:
            assert not isinstance(message, int)
            content = message.get("content")
            # Other than a text may be large, and an event loop waits for this.
            text = content[:CHARACTERS] if isinstance(content, str) else ""
            beginning.append((str(message.get("role")), text))
            if message.get("role") == "user":
                break
    else:
        beginning = list(prompt[:IDS])
    told = json.dumps([beginning, params.get("cache_salt")], default=str, sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:32]
