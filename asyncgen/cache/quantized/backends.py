"""The two ways to quantise, by name, with the bits and axes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen.cache.quantized import affine, half_quadratic

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from asyncgen.cache.quantized.packing import Grouping, Packed


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to quantise.

    Attributes:
        bits: Bits of a number that it supports.
        axes: Axes that it groups along.
        quantize: Takes a tensor ``[B, K, T, D]``.
        dequantize: Gives it back.
        numbers_of_line: Counts the numbers of a tensor of some shape, along some axis, that are cut
            into groups together.
    """

    bits: tuple[int, ...]
    axes: tuple[int, ...]
    quantize: Callable[[Tensor, Grouping], Packed]
    dequantize: Callable[[Packed, Grouping], Tensor]
    numbers_of_line: Callable[[torch.Size, int], int]


BACKENDS = {
    "quanto": Backend((2, 4), (0, -1), affine.quantize, affine.dequantize, affine.numbers_of_line),
    "hqq": Backend(
        (1, 2, 3, 4, 8),
        (0, 1),
        half_quadratic.quantize,
        half_quadratic.dequantize,
        half_quadratic.numbers_of_line,
    ),
}
"""Backends by their names in small letters."""
