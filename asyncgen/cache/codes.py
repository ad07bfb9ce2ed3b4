"""Keys and values in 8 bits: an integer a number, and one scale a head and position.

A vector x of D numbers, the key or the value of one head at one position, becomes the scale s = max
|x| / 127 and the codes c = x / s, rounded to the nearest, ties to even; it is read as s * c. So the
error of a number is at most max |x| / 254, beside the rounding of float32. The largest number is
exact to that rounding, and zero is exact.

Scales are float32: in 16 bits they would save 3 % of a head of 64, and the codes would have to be
made for a rounded scale, which the largest number may not fit.

The scale of a vector with a NaN or an infinity is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_CODE: Final = 127
"""The largest code; the smallest is its negative."""

LEAST_SCALE: Final = torch.finfo(torch.float32).tiny
"""A vector whose scale would be below the least normal float32 is kept as zeros."""

SCALE_BYTES: Final = 4
"""Bytes of one scale."""


def encode(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Round vectors to codes.

    Args:
        numbers: ``[..., D]`` in any floating dtype.

    Returns:
        Codes ``[..., D]``, int8, and scales ``[...]``, float32.
    """
    wide = numbers.float()
    largest = wide.abs().amax(-1)  # NaN if there is a NaN
    scales = (largest / MOST_CODE).masked_fill_(largest == torch.inf, torch.nan)
    scales = scales.masked_fill_(scales < LEAST_SCALE, 0.0)
    codes = (wide / scales[..., None]).round_()
    # Zero divided by zero becomes zero; a NaN shows in the scale.
    codes = codes.nan_to_num_(0.0, 0.0, 0.0).masked_fill_((scales == 0)[..., None], 0.0)
    return codes.to(torch.int8), scales


def decode(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn codes back into numbers.

    Args:
        codes: ``[..., D]``, int8.
        scales: ``[...]``, float32.
        dtype: Of the result, to which the products of float32 are rounded.

    Returns:
        ``[..., D]``.
    """
    return (codes * scales[..., None]).to(dtype)
