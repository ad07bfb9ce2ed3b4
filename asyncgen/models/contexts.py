"""What a model asks for earlier tokens, for a batch of rows with a cache: attention, or states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.family.states import keeps_states
from asyncgen.models.mixers.dense import DenseStates

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.caches import Cache


def dense_context(
    core: Any,
    cache: Cache,
    attention_mask: Tensor | None = None,
    *,
    collect_attentions: list[Tensor] | None = None,
) -> Any:
    """Continue where a cache ends; see `DenseAttention` and `DenseStates`.

    Args:
        core: The module that computes.
        cache: What there is of earlier tokens; goes on with every forward pass.
        attention_mask: ``[B, T]``, zero for padding.
        collect_attentions: Gets the attention weights of every layer.
    """
    if not keeps_states(core.config):
        return DenseAttention(
            core.config, cache, attention_mask, collect_attentions=collect_attentions
        )
    like = torch.empty(0, dtype=core.dtype, device=core.device)
    return DenseStates(
        core.config, cache, attention_mask, like=like, collect_attentions=collect_attentions
    )
