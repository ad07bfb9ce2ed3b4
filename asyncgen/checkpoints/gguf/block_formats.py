"""Split the blocks of each packed type into codes, scales and minimums.

Every type has codes or integers in groups of inputs, with a scale for each group, and some types a
minimum. Types of 256 numbers store scales and minimums as small integers, with a factor for each
block. `Parts` are exact, both for packed weights and for plain numbers. The blocks are those of
``ggml-common.h`` in https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.models.kernels.packed_weight import SIGNED, UNSIGNED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_NON_LINEAR: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Numbers of the codes of IQ4_NL and IQ4_XS."""
_E2M1: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Numbers of the codes of MXFP4, doubled."""
_LESS_FOUR: Final = tuple(code - 4 if code < 8 else 0 for code in range(16))
"""Numbers of the codes of Q3_K, which have three bits."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Codes and scales of some blocks.

    Attributes:
        codes: ``[blocks, numbers]``: uint8 below 16 with a table, else int8.
        group: Numbers that share a scale.
        scales: ``[blocks, groups]``, floats; or int8, with ``super_scales``.
        table: Number of each code; ``None``: codes are numbers.
        minimums: Summands of scaled numbers, in the shape of ``scales``, or ``None``.
        super_scales: ``[blocks, 1]`` float16, factors of ``scales``; or ``None``.
        super_minimums: Likewise, of ``minimums``.
    """

    codes: Tensor
    group: int
    scales: Tensor
    table: tuple[int, ...] | None = None
    minimums: Tensor | None = None
    super_scales: Tensor | None = None
    super_minimums: Tensor | None = None


def parts_of(name: str, blocks: Tensor) -> Parts:
    """Split blocks into codes and scales.

    Args:
        name: Their type, such as ``"Q4_K"``.
        blocks: Their bytes, ``[blocks, bytes]``, uint8.
    """
    return _WAYS[name](blocks)


def unpack(name: str, blocks: Tensor) -> Tensor:
    """Compute the numbers of blocks, equal to those of llama.cpp bit for bit.

    Args:
        name: Their type, such as ``"Q4_K"``.
        blocks: Their bytes, ``[blocks, bytes]``, uint8.

    Returns:
        ``[blocks, numbers]``, float32.
    """
    parts = parts_of(name, blocks)
    if parts.table is None:
        numbers = parts.codes.float()
    else:
        numbers = torch.tensor(parts.table, dtype=torch.float32, device="cpu")[parts.codes.int()]
    groups = numbers.view(len(blocks), -1, parts.group)
    groups *= _whole(parts.scales, parts.super_scales)
    if parts.minimums is not None:
        groups += _whole(parts.minimums, parts.super_minimums)
    return groups.flatten(1)


def _whole(small: Tensor, factors: Tensor | None) -> Tensor:
    """``[blocks, groups, 1]`` float32."""
    whole = small.float()
    return (whole if factors is None else whole * factors.float()).unsqueeze(2)


def _half(blocks: Tensor, start: int) -> Tensor:
    """Return the float16 at a byte, ``[blocks, 1]``."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16)


def _signed(codes: Tensor, less: int = 0) -> Tensor:
    return codes.to(torch.int8) - less


def _nibbles(codes: Tensor) -> Tensor:
    """Return the lower halves of bytes ``[..., bytes]``, then the upper: ``[..., 2 * bytes]``."""
    return torch.cat((codes & 15, codes >> 4), dim=-1)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """Return the 32 bits of four bytes, each as 16 or 0: ``[blocks, 32]``, uint8."""
    bits = (
        blocks[:, start : start + 4, None] >> torch.arange(8, dtype=torch.uint8, device="cpu")
    ) & 1
    return bits.flatten(1) << 4


def _eight_times(blocks: Tensor, start: int) -> Tensor:
    """Return one bit each of 32 bytes: all lowest, then the next, ``[blocks, 256]``, uint8."""
    places = torch.arange(8, dtype=torch.uint8, device="cpu")[:, None]
    return ((blocks[:, None, start : start + 32] >> places) & 1).flatten(1)


def _pairs_of_bits(codes: Tensor) -> Tensor:
    """Return two bits each of 64 bytes: all lowest of 32, then the next, ``[blocks, 256]``."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device="cpu")[:, None]
    return ((codes.reshape(-1, 2, 1, 32) >> shifts) & 3).flatten(1)


def _q4_0(blocks: Tensor) -> Parts:
    return Parts(_nibbles(blocks[:, 2:]), 32, _half(blocks, 0), SIGNED)


def _q4_1(blocks: Tensor) -> Parts:
    return Parts(_nibbles(blocks[:, 4:]), 32, _half(blocks, 0), UNSIGNED, _half(blocks, 2))


def _q5_0(blocks: Tensor) -> Parts:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return Parts(_signed(codes, 16), 32, _half(blocks, 0))


def _q5_1(blocks: Tensor) -> Parts:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return Parts(_signed(codes), 32, _half(blocks, 0), minimums=_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Parts:
    return Parts(blocks[:, 2:].contiguous().view(torch.int8), 32, _half(blocks, 0))


def _q2_k(blocks: Tensor) -> Parts:
    both = blocks[:, :16]
    return Parts(
        _pairs_of_bits(blocks[:, 16:80]),
        16,
        _signed(both & 15),
        UNSIGNED,
        -_signed(both >> 4),
        _half(blocks, 80),
        _half(blocks, 82),
    )


def _q3_k(blocks: Tensor) -> Parts:
    codes = _pairs_of_bits(blocks[:, 32:96]) | (_eight_times(blocks, 0) << 2)
    packed = blocks[:, 96:108]
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device="cpu")[:, None]
    upper = ((packed[:, None, 8:] >> shifts) & 3).flatten(1) << 4
    scales = _signed(_nibbles(packed[:, :8]) | upper, 32)
    return Parts(codes, 16, scales, _LESS_FOUR, super_scales=_half(blocks, 108))


def _with_minimums(blocks: Tensor, codes: Tensor, table: tuple[int, ...] | None) -> Parts:
    """Read eight scales and eight minimums of six bits from twelve bytes."""
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 6) << 4)), dim=1)
    minimums = torch.cat((second & 63, (rest >> 4) | ((second >> 6) << 4)), dim=1)
    factors = _half(blocks, 0), _half(blocks, 2)
    return Parts(codes, 32, _signed(scales), table, -_signed(minimums), *factors)


def _q4_k(blocks: Tensor) -> Parts:
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1)
    return _with_minimums(blocks, codes, UNSIGNED)


def _q5_k(blocks: Tensor) -> Parts:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).flatten(1)
    return _with_minimums(blocks, _signed(low | (_eight_times(blocks, 16) << 4)), None)


def _q6_k(blocks: Tensor) -> Parts:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).flatten(1)
    codes = low | (_pairs_of_bits(blocks[:, 128:192]) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    return Parts(_signed(codes, 32), 16, scales, super_scales=_half(blocks, 208))


def _iq4_nl(blocks: Tensor) -> Parts:
    return Parts(_nibbles(blocks[:, 2:]), 32, _half(blocks, 0), _NON_LINEAR)


def _iq4_xs(blocks: Tensor) -> Parts:
    low = (blocks[:, 4:8, None] >> torch.tensor([0, 4], dtype=torch.uint8, device="cpu")) & 15
    high = (blocks[:, 2:4, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device="cpu")) & 3
    scales = _signed(low.flatten(1) | (high.flatten(1) << 4), 32)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16)).flatten(1)
    return Parts(codes, 32, scales, _NON_LINEAR, super_scales=_half(blocks, 0))


def _mxfp4(blocks: Tensor) -> Parts:
    # The table is doubled, so the power is halved: 2 ** (e - 128), which bfloat16 has exactly.
    powers = torch.exp2(blocks[:, :1].double() - 128).to(torch.bfloat16)
    return Parts(_nibbles(blocks[:, 1:]), 32, powers, _E2M1)


_WAYS: Final[dict[str, Callable[[Tensor], Parts]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
