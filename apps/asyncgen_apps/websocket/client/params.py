"""Convert prompt and parameters to JSON, and refuse values that JSON cannot carry.

The server checks names and values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncgen import InvalidRequestError

if TYPE_CHECKING:
    from asyncgen import Prompt


_FORMS = "a non-empty text, list of chat messages, or list of token ids"
_JSON = "a server takes only what JSON can carry: text, finite numbers, lists, text-keyed objects"
_END_OF_IDS = 2**31
_DEEPEST = 100
"""Most levels of a value. A server refuses a frame that is nested deeper without its request id, so
the error could end another request."""


def wire_prompt(prompt: Prompt) -> dict[str, Any]:
    """Return the field of a ``generate`` message that carries the prompt.

    Args:
        prompt: A text, a list of chat messages, or a list of token ids.

    Returns:
        One of ``{"prompt": …}``, ``{"messages": …}`` and ``{"token_ids": …}``.

    Raises:
        InvalidRequestError: It is not a prompt, or a message holds a value that is not JSON.
    """
    if isinstance(prompt, str) and prompt:
        return {"prompt": _plain("prompt", prompt)}
    if not isinstance(prompt, Sequence) or isinstance(prompt, str | bytes | bytearray):
        raise InvalidRequestError("prompt", prompt, _FORMS)
    if not prompt:
        raise InvalidRequestError("prompt", prompt, _FORMS)
    if all(isinstance(item, Mapping) for item in prompt):
        return {"messages": [_plain("prompt", item) for item in prompt]}
    ids = [item for item in prompt if isinstance(item, int) and not isinstance(item, bool)]
    if len(ids) == len(prompt):
        beyond = next((one for one in ids if not 0 <= one < _END_OF_IDS), None)
        if beyond is not None:
            raise InvalidRequestError("prompt", beyond, "token ids are from 0, of the vocabulary")
        return {"token_ids": ids}
    raise InvalidRequestError("prompt", prompt, _FORMS)


def wire_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given; ``None`` means not given.

    Raises:
        InvalidRequestError: Names the parameter that JSON cannot carry.
    """
    return {name: _plain(name, value) for name, value in params.items() if value is not None}


def _plain(name: str, value: Any) -> Any:
    """Return ``value`` as the server reads it from JSON; refuse a value that JSON changes."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_mapping)
        plain = json.loads(text.encode())  # encoding refuses half a surrogate pair
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequestError(name, value, _JSON) from None
    if _is_deeper(plain, _DEEPEST):
        raise InvalidRequestError(name, value, f"a server takes at most {_DEEPEST} levels")
    if not _text_keyed(value):  # JSON would convert other keys to text
        raise InvalidRequestError(name, value, _JSON)
    return plain


def _mapping(value: object) -> dict[Any, Any]:
    """Convert a mapping that is not a ``dict``, as a chat message may be."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _text_keyed(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _text_keyed(item) for key, item in value.items())
    return not isinstance(value, list | tuple) or all(map(_text_keyed, value))


def _is_deeper(value: object, levels: int) -> bool:
    """Tell whether lists and objects have more than so many levels."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            item
            for one in layer
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
    return bool(layer)
