"""Half-quadratic quantisation (HQQ): the offset of each group is fitted, outliers weigh less.

Badri and Shaji 2023, "Half-Quadratic Quantization of Large Machine Learning Models". A level is
``round(x * scale + zero)``, with the scale of the group's range. The error's p-norm with p = 0.7 is
minimised over the offset ``zero`` alone, in turns: the error is shrunk by the generalised soft
threshold, and the offset becomes the mean that fits the rest. It ends when the mean error of the
whole tensor stops falling, or after 20 turns.

Learnt from the paper and from the results of ``hqq`` 0.2.8 on a CPU, which it equals bit for bit.
The weight of the threshold stays constant, as there; the paper lets it grow.

Along axis 1 the tensor is cut into groups in memory order. Along axis 0 it is cut into as many
parts as a group has numbers, and a group has one number of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncgen.cache.quantized.packing import Grouping, Packed, fill, pack, unpack

_NORM = 0.7
_WEIGHT = 10.0
_TURNS = 20
_NARROWEST = 1e-4
"""Range up to which a group counts as one number."""
_MOST_SCALE = 2e4


def quantize(states: Tensor, grouping: Grouping) -> Packed:
    """Quantise a tensor, computing in float32.

    Args:
        states: ``[B, K, T, D]``, of a floating dtype.
        grouping: 1, 2, 3, 4 or 8 bits, axis 0 or 1.

    Returns:
        The levels; ``scale`` and ``offset`` are one over the scale and the zero of the formula,
        ``[groups, 1]`` along axis 1 and ``[1, groups]`` along axis 0, of the tensor's dtype.
    """
    dim, size = grouping.axis, grouping.size
    filled = fill(states.reshape(1, -1).float(), size)
    groups = filled.view(-1, size) if dim == 1 else filled.view(size, -1)
    least, greatest = groups.aminmax(dim=dim, keepdim=True)
    spread = greatest - least
    scale = (grouping.top / spread).clamp(max=_MOST_SCALE).where(spread > _NARROWEST, 1.0)
    zero = _fitted(groups, scale, -least * scale, dim, grouping.top)
    levels = _levels(groups, scale, zero, grouping.top).nan_to_num_(0)
    packed = pack(levels.to(torch.uint8), grouping.bits)
    dtype = states.dtype
    return Packed(packed, (1 / scale).to(dtype), zero.to(dtype), levels.numel(), states.shape)


def dequantize(packed: Packed, grouping: Grouping) -> Tensor:
    """Turn levels back into numbers, ``[B, K, T, D]``."""
    scale, shape = packed.scale, packed.shape
    levels = unpack(packed.levels, grouping.bits, packed.count).to(scale.dtype)
    groups = (
        levels.view(-1, grouping.size) if grouping.axis == 1 else levels.view(grouping.size, -1)
    )
    return (groups - packed.offset).mul_(scale).view(-1)[: shape.numel()].view(shape)


def numbers_of_line(shape: torch.Size, axis: int) -> int:
    """Count the numbers that are cut into groups together."""
    return shape.numel()


def _levels(groups: Tensor, scale: Tensor, zero: Tensor, top: int) -> Tensor:
    return (groups * scale + zero).round_().clamp_(0, top)


def _fitted(groups: Tensor, scale: Tensor, zero: Tensor, dim: int, top: int) -> Tensor:
    """Fit the offsets."""
    best = math.inf
    for _ in range(_TURNS):
        levels = _levels(groups, scale, zero, top)
        error = groups - (levels - zero) / scale
        size = error.abs()
        shrunk = error.sign() * (size - size.pow(_NORM - 1) * (1 / _WEIGHT)).relu_()
        zero = (levels - (groups - shrunk) * scale).mean(dim=dim, keepdim=True)
        mean = float(size.mean())
        if not mean < best:
            break
        best = mean
    return zero
