"""Pack a matrix of floats by rounding to nearest, in groups of inputs.

NF4 and FP4 are those of bitsandbytes: a number is its block's largest magnitude times the nearest
number of a table. NF4: Dettmers et al., "QLoRA" (arXiv:2305.14314), appendix E. Blocks are 64
inputs of a row, and shorter at its end; those of bitsandbytes run on into the next row there.

Integers of 8 bits are symmetric: the largest magnitude of a group becomes 127. Codes of 4 bits span
a group from its least number to its largest, including zero, which has its own code. So the error
of a weight is at most half a scale, and a little more if the scale was rounded down.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import torch
from torch.nn.functional import pad

from asyncgen.errors import InvalidRequestError
from asyncgen.models.kernels.packed_weight import LARGEST, UNSIGNED, PackedWeight
from asyncgen.native.weight_memory import empty_temporary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

Packing = Literal["int8", "int4"]
"""Packing of weights during loading."""

Codes = Literal["int8", "int4", "nf4", "fp4"]
"""All that a matrix can be packed to."""

PACKINGS: Final = ("int8", "int4")

GROUP: Final = 32
"""Inputs that share a scale."""

_BLOCK: Final = 64
"""Inputs that share a scale of NF4 or FP4."""

_NF4: Final = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4_SIZES: Final = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)

TABLES: Final = {"nf4": _NF4, "fp4": (*_FP4_SIZES, *(-size for size in _FP4_SIZES))}
"""The number of each code of 4 bits."""

NF4_GROUP: Final = 32
"""Inputs of a stored scale of NF4, so that a table of large integers is near to the numbers."""

LARGEST_ERROR: Final = 1 / 4000
"""How far an integer of a table may be from its number."""

UNITS: Final = {"nf4": LARGEST // NF4_GROUP - 1, "fp4": 192}
"""Integer that stands for 1 in a table of integers: all numbers of FP4 are multiples of 1 / 192."""

_ELEMENTS: Final = 1 << 18
"""Elements that are packed in one step, so that temporary tensors are small beside a matrix."""


def check_packing(value: object) -> Packing | None:
    """Return a valid packing, or ``None``.

    Raises:
        InvalidRequestError: The value is invalid.
    """
    if value is None or value in PACKINGS:
        return value
    raise InvalidRequestError("quantize", value, f"use one of {list(PACKINGS)}, or None")


def quantise(
    weight: Tensor, packing: Codes, *, scale_dtype: torch.dtype = torch.float16
) -> PackedWeight:
    """Pack a matrix.

    Args:
        weight: ``[out, in]``, of any floating dtype.
        packing: The packing.
        scale_dtype: Dtype of the scales; those of NF4 and FP4 have float32.

    Raises:
        ValueError: A number is not finite, or too large for a scale of that dtype.
    """
    rows = max(1, _ELEMENTS // weight.shape[1])
    pack: Callable[[Tensor, torch.dtype], tuple[Tensor, ...]] = partial(_by_table, packing)
    if packing in PACKINGS:
        pack = _in_eight if packing == "int8" else _in_four
    parts: list[Tensor] = []
    for start in range(0, len(weight), rows):
        packed = pack(weight.detach()[start : start + rows], scale_dtype)
        parts = parts or [
            empty_temporary((len(weight), *one.shape[1:]), one.dtype) for one in packed
        ]
        for whole, one in zip(parts, packed, strict=True):
            whole[start : start + rows] = one
    if not bool(parts[1].isfinite().all()):
        raise ValueError("numbers that are not finite, or too large, cannot be packed")
    inputs = weight.shape[1]
    if packing == "int8":
        return PackedWeight(codes=parts[0], scales=parts[1], inputs=inputs, group=GROUP)
    if packing in TABLES:
        table = table_of(TABLES[packing], UNITS[packing])
        group = NF4_GROUP if packing == "nf4" else _BLOCK
        return PackedWeight(
            codes=parts[0], scales=parts[1], inputs=inputs, group=group, table=table
        )
    return PackedWeight(
        codes=parts[0],
        scales=parts[1],
        zeros=parts[2],
        table=UNSIGNED,
        inputs=inputs,
        group=GROUP,
    )


def table_of(numbers: Sequence[float], unit: int) -> tuple[int, ...]:
    """Round the numbers of a table to integers.

    Args:
        numbers: From -1 to 1.
        unit: Integer that stands for 1.
    """
    return tuple(round(number * unit) for number in numbers)


def _groups(weight: Tensor, size: int = GROUP) -> Tensor:
    """Return ``[out, groups, size]`` in float32, padded with zeros."""
    missing = -weight.shape[1] % size
    weight = weight.float()
    if missing:
        weight = pad(weight, (0, missing))
    return weight.view(len(weight), -1, size)


def _by_table(packing: str, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    groups = _groups(weight, _BLOCK)
    largest = groups.abs().amax(dim=2)
    parts = torch.where(largest > 0, largest.reciprocal(), 0.0).unsqueeze(2) * groups
    numbers, order = torch.tensor(TABLES[packing], dtype=torch.float32, device="cpu").sort(
        stable=True
    )
    between = (numbers[1:] + numbers[:-1]) / 2
    codes = order.to(torch.uint8)[torch.bucketize(parts, between)].flatten(1)
    group = NF4_GROUP if packing == "nf4" else _BLOCK
    scales = (largest / UNITS[packing]).repeat_interleave(_BLOCK // group, dim=1)
    wide = -(-weight.shape[1] // group)
    codes = codes[:, : wide * group]
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales[:, :wide].contiguous()


def _in_eight(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    groups = _groups(weight)
    scales = (groups.abs().amax(dim=2) / 127).to(dtype)
    codes = _divided(groups, scales).clamp_(-127, 127).to(torch.int8)
    return codes.flatten(1), scales


def _in_four(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    groups = _groups(weight)
    least, most = groups.amin(dim=2).clamp_(max=0), groups.amax(dim=2).clamp_(min=0)
    scales = ((most - least) / 15).to(dtype)
    zeros = _divided(-least.unsqueeze(2), scales).clamp_(0, 15)
    codes = _divided(groups, scales).add_(zeros).clamp_(0, 15).to(torch.uint8).flatten(1)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, zeros.squeeze(2).to(torch.int8)


def _divided(groups: Tensor, scales: Tensor) -> Tensor:
    """Divide numbers ``[out, groups, …]`` by scales ``[out, groups]`` and round; 0 for scale 0."""
    factors = torch.where(scales > 0, scales.float().reciprocal(), 0.0)
    return (groups * factors.unsqueeze(2)).round_()
