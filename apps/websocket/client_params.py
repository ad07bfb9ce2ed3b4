"""Prompt and parameters as JSON, or an error that names what cannot be sent.

What the values mean, and which names exist, is the server's to judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncgen import InvalidRequestError

if TYPE_CHECKING:
    from asyncgen import Prompt

__all__ = ["wire_params", "wire_prompt"]

_FORMS = "a non-empty text, list of chat messages, or list of token ids"
_JSON = "a server takes only what JSON can carry: text, finite numbers, lists, text-keyed objects"


def wire_prompt(prompt: Prompt) -> dict[str, Any]:
    """Return the field of a ``generate`` message that carries the prompt.

    Args:
        prompt: A text, a list of chat messages, or a list of token ids.

    Returns:
        One of ``{"prompt": …}``, ``{"messages": …}`` and ``{"token_ids": …}``.

    Raises:
        InvalidRequestError: It is no prompt, or a message holds something that is not JSON.
    """
    if isinstance(prompt, str) and prompt:
        return {"prompt": _plain("prompt", prompt)}
    if not isinstance(prompt, Sequence) or isinstance(prompt, str | bytes | bytearray):
        raise InvalidRequestError("prompt", prompt, _FORMS)
    if not prompt:
        raise InvalidRequestError("prompt", prompt, _FORMS)
    if all(isinstance(item, Mapping) for item in prompt):
        return {"messages": [_plain("prompt", item) for item in prompt]}
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        return {"token_ids": list(prompt)}
    raise InvalidRequestError("prompt", prompt, _FORMS)


def wire_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given; ``None`` means not given.

    Raises:
        InvalidRequestError: Names the parameter that JSON cannot carry.
    """
    return {name: _plain(name, value) for name, value in params.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    """Return ``value`` as JSON would bring it to the other side, and refuse what would change."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_mapping)
        plain = json.loads(text.encode())  # encoding refuses half a surrogate pair
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequestError(name, value, _JSON) from None
    if not _text_keyed(value):  # JSON would make texts of other keys, in silence
        raise InvalidRequestError(name, value, _JSON)
    return plain


def _mapping(value: object) -> dict[Any, Any]:
    """A mapping that is no ``dict``, as a chat message may be."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _text_keyed(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _text_keyed(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_text_keyed, value))
