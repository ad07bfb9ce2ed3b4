"""Affine quantisation between the least and the greatest number of a group, as quanto does it.

A level is ``round((x - least) / scale)`` with ``scale = (greatest - least) / (2 ** bits - 1)``,
computed in the dtype of the numbers (Jacob et al. 2017, arXiv 1712.05877, section 2; the ranges are
those of the tensor itself). Learnt from the documentation and the results of ``optimum-quanto``
0.2.7 (``MaxOptimizer`` and ``quantize_weight``), which it equals bit for bit.

Along axis 0 every row of the batch is cut into groups in memory order, so that neighbouring numbers
of a position are in one group. Along axis -1 every channel of a head is, so that a group has one
number each of consecutive positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncgen.cache.quantized.packing import Grouping, Packed, fill, pack, unpack


def quantize(states: Tensor, grouping: Grouping) -> Packed:
    """Quantise a tensor.

    Args:
        states: ``[B, K, T, D]``, of a floating dtype.
        grouping: 2 or 4 bits, axis 0 or -1.

    Returns:
        The levels; ``scale`` and ``offset``, the least number, are ``[groups, 1]`` of the tensor's
        dtype.
    """
    groups = fill(_lines(states, grouping.axis), grouping.size).reshape(-1, grouping.size)
    if grouping.axis == 0 and len(groups) == 1:
        groups = groups.view(-1, 1)  # as quanto does: a single group is kept number by number
    least, greatest = groups.aminmax(dim=1, keepdim=True)
    scale = (greatest - least) / grouping.top
    levels = ((groups - least) / scale).round_().clamp_(0, grouping.top)
    levels = levels.nan_to_num_(0)  # a group of equal numbers has no width
    packed = pack(levels.to(torch.uint8), grouping.bits)
    return Packed(packed, scale, least, levels.numel(), states.shape)


def dequantize(packed: Packed, grouping: Grouping) -> Tensor:
    """Turn levels back into numbers, ``[B, K, T, D]``."""
    scale, shape = packed.scale, packed.shape
    levels = unpack(packed.levels, grouping.bits, packed.count).to(scale.dtype)
    numbers = (levels.view(len(scale), -1) * scale).add_(packed.offset)
    if grouping.axis == 0:
        return numbers.view(shape[0], -1)[:, : shape[1:].numel()].view(shape)
    return numbers.view(shape[-1], -1)[:, : shape[:-1].numel()].T.reshape(shape)


def numbers_of_line(shape: torch.Size, axis: int) -> int:
    """Count the numbers that are cut into groups together."""
    return shape[1:].numel() if axis == 0 else shape[:-1].numel()


def _lines(states: Tensor, axis: int) -> Tensor:
    """View the tensor as lines that are cut into groups: rows of the batch, or channels."""
    return states.reshape(len(states), -1) if axis == 0 else states.reshape(-1, states.shape[-1]).T
