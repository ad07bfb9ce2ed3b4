"""Pack small whole numbers into few bits, and cut tensors into groups.

This module knows neither caches nor quantisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grouping:
    """Cut of a tensor into groups, and the bits of a number.

    Attributes:
        bits: Of a number: 1, 2, 3, 4 or 8.
        axis: Axis along which groups stay apart; each backend defines its meaning.
        size: Numbers of a group.
    """

    bits: int
    axis: int
    size: int

    @property
    def top(self) -> int:
        """The highest level; the lowest is 0."""
        return 2**self.bits - 1


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised tensor.

    Attributes:
        levels: The levels of all numbers, packed, uint8 ``[ceil(count * bits / 8)]``.
        scale: A level's width in each group, in the dtype of the dequantised numbers.
        offset: Begin of each group, of the same shape and dtype; each backend defines its meaning.
        count: Number of levels, with those that fill the last group.
        shape: Shape of the tensor, ``[B, K, T, D]``.
    """

    levels: Tensor
    scale: Tensor
    offset: Tensor
    count: int
    shape: torch.Size

    def to(self, device: torch.device | str) -> Packed:
        """Copy it to another device."""
        levels, scale, offset = (each.to(device) for each in (self.levels, self.scale, self.offset))
        return replace(self, levels=levels, scale=scale, offset=offset)


def fill(lines: Tensor, size: int) -> Tensor:
    """Lengthen lines ``[L, n]`` to whole groups, by repeating the last number of each."""
    missing = -lines.shape[1] % size
    if not missing:
        return lines
    return torch.cat((lines, lines[:, -1:].expand(-1, missing)), dim=1)


def pack(levels: Tensor, bits: int) -> Tensor:
    """Pack levels.

    Args:
        levels: Below ``2 ** bits``, uint8, of any shape.
        bits: 1, 2, 3, 4 or 8.

    Returns:
        uint8, of one axis: a byte holds ``8 / bits`` levels, which lie far from each other in the
            tensor, so that unpacking writes in one go. Three bits are two and one, in two parts.
    """
    flat = levels.reshape(-1)
    if bits == 8:
        return flat
    if bits == 3:
        return torch.cat((pack(flat & 3, 2), pack(flat >> 2, 1)))
    planes = fill(flat[None], 8 // bits).view(8 // bits, -1)
    packed = planes[0].clone()
    for index in range(1, len(planes)):
        packed |= planes[index] << (bits * index)
    return packed


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Undo `pack`: ``count`` levels, uint8 ``[count]``."""
    if bits == 8:
        return packed
    if bits == 3:
        middle = -(-count // 4)
        return unpack(packed[:middle], 2, count) | unpack(packed[middle:], 1, count) << 2
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return (packed >> shifts[:, None] & 2**bits - 1).view(-1)[:count]
