"""Check the parameters of a stream that came over a network.

Refuse parameters that run code, open files, or are not JSON: those that the library's table calls
local, as a test checks. The engine checks values, except numbers beyond 64 bits, and values that
cost the server much more than the client.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from asyncgen import InvalidRequestError
from asyncgen_apps.serving.ranges import ROWS
from asyncgen_apps.serving.template_limits import too_large
from asyncgen_apps.serving.time_slices import give_way
from asyncgen_apps.websocket.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue


REFUSED = frozenset(
    """
    assistant_ensemble_weight assistant_lookbehind assistant_model assistant_tokenizer cache_config
    cache_implementation client compile_config constraints continuous_batching_config
    custom_generate disable_compile generation_config is_assistant logits_processor max_cache_len
    prefix_allowed_tokens_fn recipe response_model speculation_type stopping_criteria
    synced_gpus target_lookbehind trust_remote_code use_mtp
    """.split()
)

NO_PRIORITY = "`priority` is not taken by this server: its operator may say --allow-priority"

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


def check_priority(params: Mapping[str, JsonValue], *, allow_priority: bool) -> Fault | None:
    """Refuse a ``priority`` of a client that may not set one.

    Args:
        params: Parameters that the client sent; ``None`` is not given.
        allow_priority: True if this server accepts ``priority`` from this client.
    """
    if params.get("priority") is None or allow_priority:
        return None
    return Fault("invalid_request", NO_PRIORITY, param="priority")


def check_params(params: Mapping[str, JsonValue]) -> Fault | None:
    """Find the first parameter that no client may send; works in time slices.

    Args:
        params: Parameters that the client sent; ``None`` is not given.

    Returns:
        The error, or ``None``. The engine checks the names: it suggests the nearest one.
    """
    for name, value in params.items():
        if value is None:
            continue
        if name in REFUSED:
            message = f"`{name}` is not taken from clients: it is for code beside the engine"
            return Fault("invalid_request", message, param=name)
        if not _is_sane(value):
            message = (
                f"`{name}` holds a number beyond 64 bits, or one that is not finite: whole numbers"
                " are from -2**63 to 2**64 - 1"
            )
            return Fault("invalid_request", message, param=name)
        if name == "chat_template_kwargs" and (reason := too_large(value)) is not None:
            return Fault("invalid_request", f"`{name}` {reason}", param=name)
        if name in ROWS and (allowed := ROWS[name](value)) is not None:
            message = str(InvalidRequestError(name, value, allowed))
            return Fault("invalid_request", message, param=name)
    return None


def _is_sane(value: JsonValue) -> bool:
    give_way()
    if isinstance(value, int):
        return _SMALLEST <= value <= _LARGEST
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(map(_is_sane, value))
    if isinstance(value, dict):
        return all(map(_is_sane, value.values()))
    return True
