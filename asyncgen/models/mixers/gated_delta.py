"""The gated delta rule in torch: a state that forgets, and replaces the stored value of a key.

It goes through a text token by token, so that no bit depends on how a prompt was cut into chunks,
on whether a token came alone, or on the rows beside it (see `scan`).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LEAST: Final = 1e-6
"""Added to the square of a length before the root, as checkpoints were trained."""


def gated_delta(
    state: Tensor, queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, rates: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the recurrence ``M = exp(g) M``, ``M = M + b (v - M k) k'``, ``y = M q``.

    Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule" (2024),
    equation 10; with a decay for each feature of a key it is that of Kimi Linear (2025), equation
    1. All arguments are float32; groups of ``H / G`` value heads next to each other share a key.

    Args:
        state: M before the first token, ``[R, H, V, K]``; not changed.
        queries: q, normalised and scaled, ``[R, S, G, K]``.
        keys: k, normalised, ``[R, S, G, K]``.
        values: v, ``[R, S, H, V]``.
        decay: g, not above 0: ``[R, S, H, 1]``, or ``[R, S, H, K]`` if features differ.
        rates: b, ``[R, S, H]``: part of a key's stored value that the new value replaces.

    Returns:
        y ``[R, S, H, V]``, and M behind the last token.
    """
    rows, length, heads, size = values.shape
    groups, features = keys.shape[2:]
    split = (rows, groups, heads // groups, size, features)
    found = torch.empty_like(values)
    behind = torch.empty_like(state)
    kept = torch.exp(decay)
    for token in range(length):
        state = torch.mul(state, kept[:, token, :, None], out=behind)
        by_group = state.view(split)
        key = keys[:, token, :, None, None]  # [R, G, 1, 1, K]
        stored = (by_group * key).sum(-1).flatten(1, 2)  # [R, H, V]
        new = (values[:, token] - stored).mul_(rates[:, token, :, None])
        by_group.add_(new.view(*split[:-1], 1) * key)
        read = by_group * queries[:, token, :, None, None]
        found[:, token] = read.sum(-1).flatten(1, 2)
    return found, state


def of_length_one(rows: Tensor) -> Tensor:
    """Divide vectors ``[..., K]`` by their lengths, float32."""
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True).add_(LEAST))
