"""Read one matrix of each scheme of packed weights.

Each function takes the parts of a matrix by their names in the file, and the file's settings, and
returns the packed weight. Dtypes and shapes of the parts were checked by their headers
(`part_shapes`); what they hold is checked here. The formulas are those of the formats' documents:

| Scheme | value | exact |
|---|---|---|
| compressed-tensors, integers | ``scale (q - zero)``, q with a sign | yes |
| GPTQ | ``scale (q - (zero + 1))``, without the 1 in its second version; any order | yes |
| AWQ | ``scale (q - zero)``, eight columns a word, out of order | yes |
| bitsandbytes, 8 bits | ``q scale / 127`` by row | up to the rounding of scale / 127 |
| bitsandbytes, NF4, FP4 | ``table[code] absmax`` | FP4 up to rounding, NF4 to absmax / 4,094 |
| BitNet | ``scale (q - 1)``, q of 0, 1, 2, or divided by the scale | yes |
| float8 | ``q scale``, by tensor, row or block | unpacked: rounded to what is computed in |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.checkpoints.packed.grouped_weight import packed_weight
from asyncgen.checkpoints.packed.quant_state import parse_state
from asyncgen.checkpoints.packed.quantise import LARGEST_ERROR, NF4_GROUP, UNITS, table_of
from asyncgen.checkpoints.packed.raw_tensors import fields
from asyncgen.errors import shorten
from asyncgen.models.kernels.packed_weight import PackedWeight
from asyncgen.runtime.transfer import host_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    Parts = Mapping[str, Tensor]

_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of each half byte of a word."""


def compressed_integers(
    parts: Parts, *, bits: int, size: int | None, is_symmetric: bool | None = None
) -> PackedWeight:
    """compressed-tensors: ``weight`` int8, or ``weight_packed`` in words of 32 bits.

    Args:
        parts: And ``weight_scale``, ``weight_zero_point``, ``weight_shape``, ``weight_g_idx``.
        bits: Bits of a number.
        size: Inputs of a group; ``None``: the whole row.
        is_symmetric: There are no zero points, or all are 0; ``None``: the file does not say it.

    Raises:
        ValueError: Groups or zero points do not fit these settings.
    """
    middle = 1 << bits - 1
    zeros = parts.get("weight_zero_point")
    if "weight_packed" in parts:
        outputs, inputs = (int(one) for one in parts["weight_shape"])
        numbers = fields(parts["weight_packed"], bits)[:, :inputs]
        if zeros is not None and zeros.dtype == torch.int32:
            zeros = fields(zeros.mT, bits).mT[:outputs].to(torch.int32) - middle
    else:
        numbers = (parts["weight"].view(torch.uint8) ^ 0x80) - (128 - middle)
        outputs, inputs = numbers.shape
        if int(numbers.max()) >> bits:
            raise ValueError(f"numbers of more than {bits} bits")
    scales = parts["weight_scale"]
    scales = scales if scales.dim() == 2 else scales.reshape(-1, 1)
    scales = scales.expand(outputs, -1).contiguous()
    if zeros is not None:
        if is_symmetric and bool(zeros.any()):
            raise ValueError("it is symmetric, and has zero points")
        zeros = zeros.reshape(-1, scales.shape[1]).expand(outputs, -1).int() + middle
    size = min(size or inputs, inputs)
    order = _column_order(parts.get("weight_g_idx"), size)
    if order is not None:
        numbers = numbers[:, order.long()]
    return packed_weight(numbers, scales, size, bits=bits, zeros=zeros, order=order)


def gptq(parts: Parts, *, bits: int, size: int | None, is_second: bool) -> PackedWeight:
    """GPTQ: ``qweight`` and ``qzeros`` in words, ``scales``, and ``g_idx``.

    Args:
        parts: By these names.
        bits: Bits of a number, 4 or 8.
        size: Inputs of a group; ``None``: the whole row.
        is_second: Zero points are stored unchanged, and not less 1.

    Raises:
        ValueError: ``g_idx`` says that a group has another size, or none.
    """
    numbers = fields(parts["qweight"].mT, bits)  # [out, in]
    # One less than a zero point of 0 is the largest number.
    zeros = fields(parts["qzeros"], bits).mT.int() + (0 if is_second else 1) & (1 << bits) - 1
    scales = parts["scales"].mT.contiguous()
    size = min(size or numbers.shape[1], numbers.shape[1])
    order = _order("g_idx", parts.get("g_idx"), size)
    if order is not None:
        numbers = numbers[:, order.long()]
    return packed_weight(numbers, scales, size, bits=bits, zeros=zeros[: len(scales)], order=order)


def awq(parts: Parts, *, size: int | None) -> PackedWeight:
    """AWQ, as multiplied by matrices: ``qweight`` ``[in, out / 8]``, ``qzeros`` and ``scales``.

    Args:
        parts: By these names.
        size: Inputs of a group; ``None``: the whole row.
    """
    numbers, zeros = (_awq_columns(parts[name]) for name in ("qweight", "qzeros"))
    scales = parts["scales"].mT.contiguous()
    size = min(size or numbers.shape[1], numbers.shape[1])
    return packed_weight(numbers, scales, size, bits=4, zeros=zeros)


def bitsandbytes_eight(parts: Parts) -> PackedWeight:
    """bitsandbytes in 8 bits: ``weight`` int8 and ``SCB``, the largest of each row.

    Args:
        parts: By these names.
    """
    numbers = parts["weight"].view(torch.uint8) ^ 0x80
    scales = (parts["SCB"].float() / 127).view(-1, 1)
    return packed_weight(numbers, scales, numbers.shape[1], bits=8)


def bitsandbytes_four(parts: Parts) -> PackedWeight:
    """bitsandbytes in 4 bits: ``weight``, two codes a byte, the first in the upper half.

    Args:
        parts: ``weight``, in bytes or a wider dtype of the same bytes; ``absmax`` of each block of
            the flat matrix, ``quant_map``, and ``quant_state``, which is JSON; of scales that are
            packed themselves ``nested_absmax`` and ``nested_quant_map``.

    Raises:
        ValueError: The table has numbers that integers do not stand for.
    """
    state = parse_state(bytes(parts["quant_state"].flatten().tolist()))
    outputs, inputs = state.shape
    absmax = parts["absmax"]
    if state.nested is not None:
        levels = parts["nested_quant_map"].float()[absmax.int()]
        factors = parts["nested_absmax"].float()
        repeats = min(state.nested.block, len(levels))
        absmax = levels * factors.repeat_interleave(repeats)[: len(levels)] + state.nested.offset
    absmax = absmax.float().view(outputs, -1)
    unit = UNITS[state.quant_type]
    codes = parts["weight"].flatten().view(torch.uint8).view(outputs, -1)
    return PackedWeight(
        codes=codes << 4 | codes >> 4,
        inputs=inputs,
        group=NF4_GROUP,
        scales=(absmax / unit).repeat_interleave(state.block // NF4_GROUP, dim=1),
        table=_table(parts["quant_map"].tolist(), state.quant_type),
    )


def float8(parts: Parts, *, scale: str, blocks: Sequence[tuple[int, int] | None]) -> Tensor:
    """Unpack float8 with one scale for the tensor, each row, or each block, to float32.

    Args:
        parts: ``weight`` ``[…, out, in]``, and its scales.
        scale: Name of the scales.
        blocks: Rows and columns of a block, the first that fits; ``None``: there are no blocks.

    Raises:
        ValueError: The scales are not as many as any of the blocks say.
    """
    weight, scales = parts["weight"].float(), parts[scale].float()
    block = block_of_scales(scales.shape, weight.shape, blocks)
    return weight * _widened(scales, weight.shape, block)


def block_of_scales(
    scales: Sequence[int], weight: Sequence[int], blocks: Sequence[tuple[int, int] | None]
) -> tuple[int, int] | None:
    """Return the first block that explains the shape of scales; ``None``: rows, or the tensor.

    Args:
        scales: Shape of the scales.
        weight: Shape of the numbers, ``[…, out, in]``.
        blocks: See `float8`.

    Raises:
        ValueError: None of them does.
    """
    for block in blocks:
        if len(weight) >= 2 and _fits(tuple(scales), tuple(weight), block):
            return block
    found, numbers = (shorten(list(shape)) for shape in (scales, weight))
    tried = [block or "rows" for block in blocks]
    raise ValueError(f"{found} scales for {numbers} numbers, which do not fit blocks of {tried}")


def three_values(parts: Parts, *, is_divided: bool) -> PackedWeight:
    """BitNet: ``weight`` ``[out / 4, in]``, whose bytes hold numbers of four rows, each 0, 1 or 2.

    The lowest two bits are rows of the first quarter, and so on; 1 stands for 0.

    Args:
        parts: And ``weight_scale``, one number.
        is_divided: Numbers are divided by the scale, and not multiplied.

    Raises:
        ValueError: The scale is not one number, or a number is 3.
    """
    packed, scale = parts["weight"], parts["weight_scale"].float()
    numbers = torch.cat([packed >> 2 * place & 3 for place in range(4)])
    if scale.numel() != 1 or bool((numbers == 3).any()):
        raise ValueError(f"numbers have three values, and one scale, not {scale.numel()}")
    outputs, inputs = numbers.shape
    scales = (1 / scale if is_divided else scale).view(1, 1).expand(outputs, 1).contiguous()
    zeros = torch.ones(outputs, 1, dtype=torch.int32, device="cpu")
    return packed_weight(numbers, scales, inputs, bits=4, zeros=zeros)


def _fits(scales: tuple[int, ...], shape: tuple[int, ...], block: tuple[int, int] | None) -> bool:
    """Tell whether a block, or rows, explain the shape of scales."""
    *above, rows, columns = shape
    if math.prod(scales) == 1 and (block is None or (block[0] >= rows and block[1] >= columns)):
        return True
    if block is None:
        by_row = (*above, rows, 1)
        return scales in (by_row, by_row[:-1], (*above, 1, 1))
    return scales == (*above, -(-rows // block[0]), -(-columns // block[1]))


def _widened(scales: Tensor, shape: torch.Size, block: tuple[int, int] | None) -> Tensor:
    """Repeat scales, which fit, so that they multiply numbers of a shape."""
    if scales.numel() == 1:
        return scales.view(1)
    if block is None:
        return scales.view(*shape[:-2], -1, 1)
    for dim, size in zip((-2, -1), block, strict=True):
        repeats = min(size, shape[dim])
        scales = scales.repeat_interleave(repeats, dim=dim).narrow(dim, 0, shape[dim])
    return scales


def _table(numbers: Sequence[float], kind: str) -> tuple[int, ...]:
    """Round the numbers of a table of 4 bits to integers.

    Raises:
        ValueError: A number is not near to its integer, or there is none.
    """
    unit = UNITS[kind]
    for number in numbers:
        is_near = abs(number) <= 1 and abs(round(number * unit) / unit - number) <= LARGEST_ERROR
        if not is_near:
            raise ValueError(f"`quant_map` holds {number}, which is no number of {kind}")
    return table_of(numbers, unit)


def _awq_columns(words: Tensor) -> Tensor:
    """Unpack words ``[rows, columns / 8]`` to ``[columns, rows]`` uint8."""
    numbers = fields(words, 4).view(len(words), -1, 8)
    placed = torch.empty_like(numbers)
    placed[:, :, list(_AWQ_ORDER)] = numbers
    return placed.flatten(1).mT.contiguous()


def _column_order(groups: Tensor | None, size: int) -> Tensor | None:
    """As `_order` for compressed-tensors, which writes -1 for each column if all are in order."""
    is_unset = groups is not None and bool((groups == -1).all())
    return None if is_unset else _order("weight_g_idx", groups, size)


def _order(name: str, groups: Tensor | None, size: int) -> Tensor | None:
    """Return the columns sorted by their group; ``None``: they are sorted already.

    Args:
        name: Name of the part, for errors.
        groups: Group of each column; ``None``: they are in order.
        size: Columns of a group.

    Raises:
        ValueError: There is no such group, or one has another number of columns.
    """
    if groups is None:
        return None
    last = (len(groups) - 1) // size
    least, most = int(groups.min()), int(groups.max())
    if least < 0 or most > last:
        raise ValueError(
            f"`{name}` holds {least if least < 0 else most}; groups of {len(groups)} inputs are "
            f"from 0 to {last}"
        )
    order = torch.argsort(groups.long(), stable=True)
    if not torch.equal(groups.long()[order], host_range(len(groups)) // size):
        raise ValueError(f"`{name}` has groups of other sizes than {size}, which are not read")
    if bool((groups[1:] >= groups[:-1]).all()):
        return None
    return order.int()
