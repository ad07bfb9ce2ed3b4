"""Make packed weights from groups of any size and unsigned numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from asyncgen.checkpoints.packed.raw_tensors import nibbles
from asyncgen.models.kernels.packed_weight import GROUPS, UNSIGNED, PackedWeight

if TYPE_CHECKING:
    from torch import Tensor


def group_of(size: int, inputs: int) -> int:
    """Return the size of our groups for scales of the given number of inputs.

    Args:
        size: Inputs of a scale; at least those of the row for one scale.
        inputs: Inputs of a row.

    Raises:
        ValueError: No group size divides it.
    """
    if size >= inputs:
        return GROUPS[-1]
    for group in reversed(GROUPS):
        if size % group == 0:
            return group
    raise ValueError(f"groups of {size} inputs, which are no multiple of {GROUPS[0]}")


def packed_bytes(
    outputs: int, inputs: int, size: int, *, bits: int, scale: int, has_zeros: bool
) -> int:
    """Return the bytes of the result of `packed_weight`.

    Args:
        outputs: Rows of the matrix.
        inputs: Inputs of a row.
        size: Inputs of a group.
        bits: Bits of a number, 4 or 8.
        scale: Bytes of a scale.
        has_zeros: There may be zero points.

    Raises:
        ValueError: As `group_of`.
    """
    group = group_of(size, inputs)
    groups = -(-inputs // group)
    columns = 1 if size >= inputs else groups
    return outputs * (groups * group * bits // 8 + columns * (scale + has_zeros))


def packed_weight(
    numbers: Tensor,
    scales: Tensor,
    size: int,
    *,
    bits: int,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
) -> PackedWeight:
    """Make a packed weight of unsigned numbers: ``scale * (number - zero)``.

    Args:
        numbers: ``[out, in]`` uint8.
        scales: Floats, ``[out, groups]``.
        size: Inputs of a group.
        bits: Bits of a number, 4 or 8.
        zeros: ``[out, groups]``, any integers; ``None``: half of the range.
        order: See `PackedWeight`.

    Raises:
        ValueError: Groups or zero points are not supported, or scales are not as many.
    """
    outputs, inputs = numbers.shape
    expected = (outputs, -(-inputs // size))
    if scales.shape != expected:
        raise ValueError(f"{list(scales.shape)} scales, for groups of {size} {list(expected)}")
    group = group_of(size, inputs)
    repeats = 1 if size >= inputs else size // group
    middle = 1 << bits - 1
    zeros = torch.full_like(scales, middle, dtype=torch.int32) if zeros is None else zeros.int()
    missing = -inputs % group
    if missing:
        numbers = pad(numbers, (0, missing))
    parts: dict[str, Any] = {}
    if bits == 4:
        parts = {"codes": nibbles(numbers), "table": UNSIGNED}
    else:
        parts = {"codes": (numbers ^ 0x80).view(torch.int8)}
        zeros = zeros - middle
    least, most = int(zeros.min()), int(zeros.max())
    if least < -128 or most > 127:
        raise ValueError(f"zero points from {least} to {most}, which are no 8-bit numbers")
    if bits == 4 and least == most == middle:
        parts["table"] = tuple(range(-middle, middle))
        zeros = torch.zeros_like(zeros)
    groups = -(-inputs // group)
    if bool(zeros.any()):
        parts["zeros"] = _spread(zeros.to(torch.int8), repeats, groups)
    return PackedWeight(
        scales=_spread(scales, repeats, groups), inputs=inputs, group=group, order=order, **parts
    )


def _spread(values: Tensor, repeats: int, groups: int) -> Tensor:
    if repeats == 1:
        return values.contiguous()
    return values.repeat_interleave(repeats, dim=1)[:, :groups].contiguous()
