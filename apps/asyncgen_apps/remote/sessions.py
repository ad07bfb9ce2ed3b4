"""Name requests by the beginning of their prompt, so that equal ones reach the same engine."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen import Prompt

CHARACTERS = 512
"""Leading characters of a text that count: different system messages differ in them."""

IDS = 128

MESSAGES = 8


def session_of(prompt: Prompt, params: Mapping[str, Any]) -> str:
    """Return a digest of the beginning of a prompt, equal for all turns of a conversation.

    Args:
        prompt: Prompt; of messages, those up to the first of the user count.
        params: Parameters; prompts with different ``cache_salt`` share no cache and differ.

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
            # Only texts count: other content may be large, and this runs in an event loop.
            text = content[:CHARACTERS] if isinstance(content, str) else ""
            beginning.append((str(message.get("role")), text))
            if message.get("role") == "user":
                break
    else:
        beginning = list(prompt[:IDS])
    text = json.dumps([beginning, params.get("cache_salt")], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
