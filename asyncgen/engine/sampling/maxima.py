"""Finds the largest of many scores by way of the maxima of blocks, which is several times as fast.

What is found is exact: a block whose maximum is too small has nothing that could matter. It knows
nothing of what the scores mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["argmax", "block_maxima", "largest", "members"]

_ARGMAX_BLOCK = 128
_LARGEST_BLOCK = 32
_WORTH_IT = 16
"""So many blocks for each one that is looked into, or all scores are looked at."""
_FEW_SCORES = 1 << 15
"""Below so many, to look at each score once takes less time than to find the block first."""


def block_maxima(scores: Tensor, block: int) -> Tensor:
    """Return the maximum of each whole block.

    Args:
        scores: [R, V]; NaN spoils the maximum of its block.
        block: Scores in a block, at most V.

    Returns:
        [R, V // block]; the last ``V % block`` scores are in none.
    """
    rows, size = scores.shape
    count = size // block
    return scores[:, : count * block].view(rows, count, block).amax(-1)


def members(chosen: Tensor, block: int, size: int) -> Tensor:
    """List what is in some blocks, and what is in none.

    Args:
        chosen: Numbers of blocks, int64 [R, M].
        block: Scores in a block.
        size: V.

    Returns:
        Indices, int64 [R, M * block + V % block].
    """
    rows = chosen.shape[0]
    inside = torch.arange(block, device=chosen.device)
    index = (chosen[..., None] * block + inside).view(rows, -1)
    if not size % block:
        return index
    rest = torch.arange(size - size % block, size, device=chosen.device)
    return torch.cat((index, rest.expand(rows, -1)), dim=1)


def argmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Find the largest score of each row, and the first place where it is.

    Args:
        scores: [R, V].

    Returns:
        Values [R], NaN where a row holds any, and indices, int64 [R].
    """
    rows, size = scores.shape
    count, rest = divmod(size, _ARGMAX_BLOCK)
    if scores.device.type != "cpu" or not count or scores.numel() < _FEW_SCORES:
        best, index = scores.max(dim=-1)
        return best, index
    best, block = block_maxima(scores, _ARGMAX_BLOCK).max(dim=-1)
    blocks = scores[:, : size - rest].view(rows, count, _ARGMAX_BLOCK)
    place = blocks[torch.arange(rows), block].argmax(-1)
    index = block.mul_(_ARGMAX_BLOCK).add_(place)
    if rest:
        last, place = scores[:, -rest:].max(dim=-1)
        wins = (last > best) | (last.isnan() & ~best.isnan())
        best, index = torch.where(wins, last, best), torch.where(wins, size - rest + place, index)
    return best, index


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest scores of each row, the largest first.

    Args:
        scores: [R, V].
        count: How many, at most V.

    Returns:
        Values [R, count] and indices, int64 [R, count]. Of scores that tie with the last one
        returned any may be among them.
    """
    size = scores.shape[1]
    if size < _LARGEST_BLOCK * _WORTH_IT * 2 or size // _LARGEST_BLOCK < 2 * count:
        best = scores.topk(count)
        return best.values, best.indices
    # At most count - 1 blocks have a maximum above the smallest of these, so nothing that is
    # larger than it lies elsewhere.
    chosen = block_maxima(scores, _LARGEST_BLOCK).topk(count, sorted=False).indices
    index = members(chosen, _LARGEST_BLOCK, size)
    best = scores.gather(1, index).topk(count)
    return best.values, index.gather(1, best.indices)
