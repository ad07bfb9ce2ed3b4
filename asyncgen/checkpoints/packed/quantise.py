"""Pack a matrix of floats by rounding to nearest, in groups of inputs.

Integers of 8 bits are symmetric: the largest magnitude of a group becomes 127. Codes of 4 bits span
a group from its least number to its largest, including zero, which has its own code. So the error
of a weight is at most half a scale, and a little more if the scale was rounded down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import torch
from torch.nn.functional import pad

from asyncgen.errors import InvalidRequestError
from asyncgen.models.kernels.packed_weight import UNSIGNED, PackedWeight
from asyncgen.native.weight_memory import empty_temporary

if TYPE_CHECKING:
    from torch import Tensor

Packing = Literal["int8", "int4"]
"""Packing of weights during loading."""

PACKINGS: Final = ("int8", "int4")

GROUP: Final = 32
"""Inputs that share a scale."""

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
    weight: Tensor, packing: Packing, *, scale_dtype: torch.dtype = torch.float16
) -> PackedWeight:
    """Pack a matrix.

    Args:
        weight: ``[out, in]``, of any floating dtype.
        packing: The packing.
        scale_dtype: Dtype of the scales.

    Raises:
        ValueError: A number is not finite, or too large for a scale of that dtype.
    """
    rows = max(1, _ELEMENTS // weight.shape[1])
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
    return PackedWeight(
        codes=parts[0],
        scales=parts[1],
        zeros=parts[2],
        table=UNSIGNED,
        inputs=inputs,
        group=GROUP,
    )


def _groups(weight: Tensor) -> Tensor:
    """Return ``[out, groups, GROUP]`` in float32, padded with zeros."""
    missing = -weight.shape[1] % GROUP
    weight = weight.float()
    if missing:
        weight = pad(weight, (0, missing))
    return weight.view(len(weight), -1, GROUP)


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
