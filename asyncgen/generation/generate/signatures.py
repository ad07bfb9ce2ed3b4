"""What a function that a user wrote can be called with. Knows no tensors."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["acceptable", "own_parameters", "parameter_names"]

PREPARED = frozenset(
    "model input_ids logits_processor stopping_criteria generation_config attention_mask "
    "past_key_values use_cache encoder_outputs decoder_attention_mask streamer draw".split()
)
"""What a decoding method gets prepared, and a caller does not hand over."""


def parameter_names(function: Callable[..., Any]) -> frozenset[str]:
    """Names of a function's own parameters, ``*args`` and ``**kwargs`` aside."""
    return frozenset(
        one.name
        for one in _parameters(function)
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    )


def own_parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Names of the parameters that a decoding method has beside those that are prepared."""
    return parameter_names(function) - PREPARED


def acceptable(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that a function can take: all of them where it has ``**kwargs``."""
    found = _parameters(function)
    if any(one.kind is one.VAR_KEYWORD for one in found):
        return dict(arguments)
    names = parameter_names(function)
    return {name: value for name, value in arguments.items() if name in names}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin, which does not tell
        return []
