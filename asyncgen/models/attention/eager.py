"""Attention as plain operators: scores, options, softmax, weighted values.

It serves layers whose options torch's fused kernels lack, and calls that want the weights. Between
the two products it computes in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.families.plans.attention_options import AttentionOptions

MOST_SCORES: Final = 1 << 24
"""Scores in memory at the same time, unless one query of each row has more."""


def hide_unseen(queries: Tensor, keys: Tensor, options: AttentionOptions) -> Tensor:
    """Mark the keys that each query does not see: later ones, and those outside of the window.

    Args:
        queries: Positions of the queries, ``[..., S, 1]``, from 0; negative ones stand for padding.
        keys: Positions of the keys, ``[..., T]`` or ``[..., 1, T]``.
        options: The layer's.

    Returns:
        Bool, ``[..., S, T]``.
    """
    window = options.window
    if options.is_bidirectional:
        away = (keys - queries).abs()
        return torch.zeros_like(away, dtype=torch.bool) if window is None else away >= window
    hidden = keys > queries
    if window is None:
        return hidden
    if options.is_chunked:
        return hidden | (keys < queries.div(window, rounding_mode="floor") * window)
    return hidden | (keys <= queries - window)


def attention_weights(
    scores: Tensor,
    options: AttentionOptions,
    *,
    mask: Tensor | None,
    distances: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """Compute the weights ``[B, H, S, T]`` of scaled scores, in float32.

    Args:
        scores: ``[B, H, S, T]``, float32, scaled; overwritten.
        options: The layer's.
        mask: Added last, broadcast to the scores; ``None``: nothing.
        distances: Position of the key less that of the query, broadcast to the scores; read if
            there are slopes.
        sinks: ``[H]``, if the options have sinks.
    """
    if options.cap is not None:
        scores = scores.div_(options.cap).tanh_().mul_(options.cap)
    if options.slopes is not None:
        assert distances is not None
        slopes = torch.tensor(options.slopes, dtype=scores.dtype, device=scores.device)
        scores = scores.add_(distances * slopes[:, None, None])
    if mask is not None:
        scores = scores.add_(mask)
    if not options.has_sinks:
        return scores.softmax(dim=-1)
    assert sinks is not None, "the block hands its sinks over"
    sink = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]


def attend_eager(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    options: AttentionOptions,
    *,
    mask: Tensor | None,
    distances: Tensor | None = None,
    sinks: Tensor | None = None,
    collect: list[Tensor] | None = None,
) -> Tensor:
    """Compute attention ``[B, H, S, D]``, part by part if there are many queries.

    Args:
        queries: ``[B, H, S, D]``.
        keys: ``[B, K, T, D]``.
        values: ``[B, K, T, D]``.
        options: The layer's.
        mask: ``[1 or B, 1, S, T]``, added to the scores; hidden keys get a number below all scores.
        distances: ``[1 or B, 1, S, T]``, float; see `attention_weights`.
        sinks: ``[H]``.
        collect: Gets the weights ``[B, H, S, T]``.
    """
    batch, heads, length, size = queries.shape
    kv_heads, seen = keys.shape[1:3]
    group = heads // kv_heads
    scale = 1 / math.sqrt(size) if options.scale is None else options.scale
    each = max(MOST_SCORES // (batch * heads * seen), 1)
    attended, weights = [], []
    for first in range(0, length, each):
        part = queries[:, :, first : first + each]
        count = part.shape[2]
        # The heads of a group become queries of one key head.
        rows = part.reshape(batch, kv_heads, group * count, size)
        scores = (rows @ keys.transpose(-1, -2)).float().mul_(scale)
        found = attention_weights(
            scores.view(batch, heads, count, seen),
            options,
            mask=None if mask is None else mask[:, :, first : first + each],
            distances=None if distances is None else distances[:, :, first : first + each],
            sinks=sinks,
        ).to(queries.dtype)
        gathered = found.reshape(batch, kv_heads, group * count, seen) @ values
        attended.append(gathered.view(batch, heads, count, -1))
        if collect is not None:
            weights.append(found)
    if collect is not None:
        collect.append(torch.cat(weights, dim=2))
    return attended[0] if len(attended) == 1 else torch.cat(attended, dim=2)
