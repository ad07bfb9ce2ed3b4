"""Attention written out: scores, what bends them, their softmax, and the weighted values.

For layers whose options torch's fused kernels do not have, and where the weights are wanted. What
comes between the product and the weights is computed in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.families.plans.attention_options import AttentionOptions

MOST_SCORES: Final = 1 << 24
"""Scores that are there at the same time, unless one query of each row has more."""


def hide_unseen(queries: Tensor, keys: Tensor, options: AttentionOptions) -> Tensor:
    """Which keys are hidden from which queries: later ones, and those outside of the window.

    Args:
        queries: Their positions, ``[..., S, 1]``, from 0; negative ones stand for padding.
        keys: Their positions, ``[..., T]`` or ``[..., 1, T]``.
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
    """The weights ``[B, H, S, T]`` that scaled scores become, in float32.

    Args:
        scores: ``[B, H, S, T]``, float32, scaled; overwritten.
        options: The layer's.
        mask: What is added at last, broadcast to the scores; ``None``: nothing.
        distances: Position of the key less that of the query, broadcast to the scores; read where
            there are slopes.
        sinks: ``[H]``, where the options say so.
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
    """Attention ``[B, H, S, D]``, a stretch of queries after another where they are many.

    Args:
        queries: ``[B, H, S, D]``.
        keys: ``[B, K, T, D]``.
        values: ``[B, K, T, D]``.
        options: The layer's.
        mask: ``[1 or B, 1, S, T]``, added to the scores: what is hidden gets a number that no
            score reaches.
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
        # A group of heads as so many queries of one.
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
