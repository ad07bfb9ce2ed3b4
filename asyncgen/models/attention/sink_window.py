"""Let a model run with a `SinkCache`: room in the cache before a pass, and positions in it.

Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453),
section 3.2: positions are those in the cache, also of rotated keys and of distances. A learned
position is part of what a layer reads, so it stays the one in the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.families.plans.state_plan import keeps_states

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.sink import SinkCache
    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.layer_plan import NormPlan


def enter_window(core: Any, cache: SinkCache, mask: Tensor) -> tuple[Tensor | None, Tensor]:
    """Make room for the tokens of a pass.

    Args:
        core: The module that computes.
        cache: Drops positions that are too much.
        mask: Of the new tokens, bool ``[B, S]``, ``False`` at padding.

    Returns:
        The mask of all positions that the cache then holds, bool ``[B, T]``, or ``None`` without
        padding; and the positions of the new tokens, int64 ``[B, S]``.

    Raises:
        InvalidRequestError: The model has keys that cannot be turned.
    """
    config: ModelConfig = core.config
    _check_model(core, config)
    before, size = cache.num_tokens, mask.shape[1]
    layers = range(config.num_hidden_layers)
    cache.make_room(~mask, [core.rope_frequencies(index) for index in layers])
    hidden = cache.hidden
    length = cache.get_seq_length() + size
    limit = core.packed_length
    if limit is not None and length > limit:
        allowed = f"the angles of this model change behind {limit} positions; use a shorter window"
        raise InvalidRequestError(
            "past_key_values", InWords(f"a SinkCache of {length} positions"), allowed
        )
    if config.stream.positions in ("table", "sinusoids"):
        positions = mask.cumsum(dim=1) - 1
        positions = (positions if before is None else positions + before).clamp_(min=0)
    elif hidden is None:
        positions = torch.arange(
            length - size, length, dtype=torch.int64, device=mask.device
        ).expand_as(mask)
    else:
        positions = ((~hidden).cumsum(dim=1) - 1).clamp_(min=0)[:, -size:]
    return None if hidden is None else ~hidden, positions


def _check_model(core: Any, config: ModelConfig) -> None:
    """Refuse layers whose keys do not turn with their positions.

    Raises:
        InvalidRequestError: There are such layers.
    """
    plans = config.layer_plans
    norms = [plan.head_norm for plan in plans if plan.head_norm is not None]
    if not hasattr(core, "rope_frequencies"):
        why = "do not say how their keys turn"
    elif keeps_states(config):
        why = "keep states, and no keys and values of each position"
    elif config.is_encoder_decoder:
        why = "add biases of positions in the text"
    elif any(plan.varied is not None for plan in plans):
        why = "share keys and values between layers"
    elif any(each.is_after_rope and not _turns(each.norm) for each in norms):
        why = "weigh keys behind their rotation"
    else:
        return
    allowed = f"layers of a {config.model_type} model {why}; use DynamicCache"
    raise InvalidRequestError("past_key_values", InWords("a SinkCache"), allowed)


def _turns(norm: NormPlan) -> bool:
    """Return whether it does not matter if a key is turned before or behind a norm."""
    return norm.kind == "rms" and not norm.has_weight
