"""Contexts of a forward pass for a batch of rows with a cache: attention, states, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.families.plans.state_plan import keeps_states
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.mixers.dense_states import DenseStates
from asyncgen.models.mixers.hybrid_context import Hybrid

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.families.config import ModelConfig


def dense_context(
    core: Any,
    cache: Cache,
    attention_mask: Tensor | None = None,
    *,
    collect_attentions: list[Tensor] | None = None,
) -> Any:
    """Make the context of a model, at the end of a cache; see `DenseAttention` and `DenseStates`.

    Args:
        core: The module that computes.
        cache: Keys, values and states of earlier tokens; goes on with every forward pass.
        attention_mask: ``[B, T]``, zero for padding.
        collect_attentions: Gets the attention weights of every layer that attends.

    Raises:
        InvalidRequestError: Weights are wanted and no layer attends; or the cache does not fit such
            a model.
    """
    config: ModelConfig = core.config
    if not keeps_states(config):
        return DenseAttention(config, cache, attention_mask, collect_attentions=collect_attentions)
    if collect_attentions is not None and not config.attending:
        allowed = f"the layers of a {config.model_type} model attend to nothing; leave it out"
        raise InvalidRequestError("output_attentions", True, allowed)
    like = torch.empty(0, dtype=core.dtype, device=core.device)
    states = DenseStates(config, cache, attention_mask, like=like)
    if not config.attending:
        return states
    attention = DenseAttention(config, cache, attention_mask, collect_attentions=collect_attentions)
    return Hybrid(attention, states)
