"""What the blocks of each packed type hold, as float32: the numbers that llama.cpp has of them.

All of it is tensor arithmetic over many blocks at once. Where a product is subtracted from
another, as in the types with minimums, both are rounded before, as llama.cpp rounds them.
The layouts are those of ``ggml-common.h`` in https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_NON_LINEAR: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The sixteen numbers of IQ4_NL and IQ4_XS."""
_E2M1: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Those of MXFP4, doubled."""


def unpack(name: str, blocks: Tensor) -> Tensor:
    """The numbers of some blocks.

    Args:
        name: Their type, such as ``"Q4_K"``.
        blocks: Their bytes, ``[blocks, bytes]``, uint8.

    Returns:
        ``[blocks, numbers]``, float32.
    """
    return _WAYS[name](blocks)


def _halves(blocks: Tensor, start: int) -> Tensor:
    """The float16 that begins at a byte, ``[blocks, 1]``, float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(codes: Tensor) -> Tensor:
    """The lower halves of bytes ``[..., bytes]``, then the upper ones, ``[..., 2 * bytes]``."""
    return torch.cat((codes & 15, codes >> 4), dim=-1)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """32 bits of four bytes as 16, where they are set: ``[blocks, 32]``, uint8."""
    places = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, start : start + 4, None] >> places) & 1
    return bits.flatten(1) << 4


def _q4_0(blocks: Tensor) -> Tensor:
    return (_nibbles(blocks[:, 2:]).to(torch.int8) - 8).float() * _halves(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).float() * _halves(blocks, 0) + _halves(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return (codes.to(torch.int8) - 16).float() * _halves(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return codes.float() * _halves(blocks, 0) + _halves(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _halves(blocks, 0)


def _pairs_of_bits(codes: Tensor) -> Tensor:
    """Two bits each of 64 bytes: all lowest of 32 bytes, then the next, ``[blocks, 256]``."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    return ((codes.view(-1, 2, 1, 32) >> shifts) & 3).flatten(1)


def _q2_k(blocks: Tensor) -> Tensor:
    scales, codes = blocks[:, :16], _pairs_of_bits(blocks[:, 16:80].contiguous())
    factors = _halves(blocks, 80) * (scales & 15).float()
    minimums = _halves(blocks, 82) * (scales >> 4).float()
    groups = codes.view(-1, 16, 16).float()
    return (groups * factors[..., None] - minimums[..., None]).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    low, packed = _pairs_of_bits(blocks[:, 32:96].contiguous()), blocks[:, 96:108]
    places = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (((blocks[:, None, :32] >> places) & 1) << 2).flatten(1)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    upper = ((packed[:, None, 8:] >> shifts) & 3).flatten(1) << 4
    scales = (_nibbles(packed[:, :8]) | upper).to(torch.int8) - 32
    factors = _halves(blocks, 108) * scales.float()
    groups = ((low | high).to(torch.int8) - 4).view(-1, 16, 16).float()
    return (groups * factors[..., None]).flatten(1)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minimums of six bits in twelve bytes, each ``[blocks, 8]``."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 6) << 4)), dim=1)
    minimums = torch.cat((second & 63, (rest >> 4) | ((second >> 6) << 4)), dim=1)
    return scales, minimums


def _with_minimums(blocks: Tensor, codes: Tensor) -> Tensor:
    scales, minimums = _six_bits(blocks[:, 4:16])
    factors = _halves(blocks, 0) * scales.float()
    lowest = _halves(blocks, 2) * minimums.float()
    groups = codes.view(-1, 8, 32).float()
    return (groups * factors[..., None] - lowest[..., None]).flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    return _with_minimums(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1))


def _q5_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).flatten(1)
    places = torch.arange(8, dtype=torch.uint8)[:, None]
    high = (((blocks[:, None, 16:48] >> places) & 1) << 4).flatten(1)
    return _with_minimums(blocks, low | high)


def _q6_k(blocks: Tensor) -> Tensor:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).flatten(1)
    high = _pairs_of_bits(blocks[:, 128:192].contiguous()) << 4
    factors = blocks[:, 192:208].contiguous().view(torch.int8).float() * _halves(blocks, 208)
    groups = ((low | high).to(torch.int8) - 32).view(-1, 16, 16).float()
    return (groups * factors[..., None]).flatten(1)


def _from_table(codes: Tensor, table: tuple[int, ...]) -> Tensor:
    return torch.tensor(table, dtype=torch.float32)[codes.int()]


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _from_table(_nibbles(blocks[:, 2:]), _NON_LINEAR) * _halves(blocks, 0)


def _iq4_xs(blocks: Tensor) -> Tensor:
    shifts = torch.tensor([0, 4], dtype=torch.uint8)
    low = ((blocks[:, 4:8, None] >> shifts) & 15).flatten(1)
    pairs = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    high = ((blocks[:, 2:4, None] >> pairs) & 3).flatten(1) << 4
    factors = _halves(blocks, 0) * ((low | high).to(torch.int8) - 32).float()
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16))
    return (_from_table(codes, _NON_LINEAR) * factors[..., None]).flatten(1)


def _mxfp4(blocks: Tensor) -> Tensor:
    # The table is doubled, so the power is halved: 2 ** (e - 128), the least of them subnormal.
    powers = torch.exp2(blocks[:, :1].double() - 128).float()
    return _from_table(_nibbles(blocks[:, 1:]), _E2M1) * powers


_WAYS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
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
