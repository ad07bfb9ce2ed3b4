"""Which requests the shared batch serves, and which take turns beside it.

The one place where this is decided. Nothing is refused or changed here: whatever the batch cannot
serve runs as a step generator of its own, in the side lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.generation.config.modes import GenerationMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.requests.params import RequestParams

__all__ = ["num_rows", "why_alone"]

_BATCHED = frozenset({GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE})
"""One token a row and step, from the model's own logits."""


def why_alone(model: Any, params: RequestParams) -> str | None:
    """Tell why a request cannot share the steps of others.

    Args:
        model: The engine's model.
        params: Of the request, resolved.

    Returns:
        A reason in words; ``None`` where the batch serves it.
    """
    for applies, reason in _RULES:
        if applies(model, params):
            return reason
    return None


def num_rows(params: RequestParams) -> int:
    """Rows of keys and values that a request keeps when it runs alone."""
    config = params.config
    rows = max(params.num_samples, config.num_beams or 1)  # samples are the best of the beams
    if params.mode is GenerationMode.CONTRASTIVE_SEARCH:
        rows *= max(config.top_k or 1, 1)
    return rows * 2 if _is_guided(model=None, params=params) else rows


def _cannot_pack(model: Any, params: RequestParams) -> bool:
    core = getattr(model, "core", None)
    return not callable(getattr(core, "decode_packed", None)) or model.config.is_encoder_decoder


def _is_guided(model: Any, params: RequestParams) -> bool:
    return params.config.guidance_scale not in (None, 1)


def _chooses_its_cache(model: Any, params: RequestParams) -> bool:
    config = params.config
    return config.cache_implementation is not None or config.use_cache is False


def _turns_with_length(model: Any, params: RequestParams) -> bool:
    """The angles of ``dynamic`` rope, beyond its original length, are those of the longest row."""
    limit, end = model.core.packed_length, params.config.max_length
    return limit is not None and (end is None or end > limit)


def _sees_all_samples(model: Any, params: RequestParams) -> bool:
    """Code that may remember its rows: all samples must come to it at once, in one order."""
    watermark, allowed = params.config.watermarking_config, params.prefix_allowed_tokens_fn
    remembers = params.processors or params.criteria or watermark or allowed
    return params.num_samples > 1 and bool(remembers)


_RULES: tuple[tuple[Callable[[Any, RequestParams], bool], str], ...] = (
    (_cannot_pack, "the model is not a decoder that takes rows of all lengths at once"),
    (lambda _, params: params.method is not None, "the decoding method is the user's"),
    (lambda _, params: params.mode not in _BATCHED, "the strategy takes more than a token a step"),
    (lambda _, params: bool(params.config.token_healing), "the prompt's last token is chosen anew"),
    (_is_guided, "guidance runs the model a second time"),
    (_chooses_its_cache, "a kind of cache was asked for"),
    (_turns_with_length, "the rotary angles change with the length"),
    (_sees_all_samples, "the user's processors or criteria see all samples at once"),
)
