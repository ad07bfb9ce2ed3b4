"""Read weights in MXFP4, the format of experts in gpt-oss checkpoints, as wider floats.

A number is a code of four bits (a sign, two bits of exponent, one of mantissa: E2M1), and each 32
of a row share a scale, a power of two (E8M0): "OCP Microscaling Formats (MX) Specification" 1.0
(2023), sections 5.3.3 and 5.4.1. A file has two tensors in the place of each ``name``:
``name_blocks`` ``[experts, out, in / 32, 16]`` of two codes a byte, the lower half first, and
``name_scales`` ``[experts, out, in / 32]``, both of bytes. Every such number is one of bfloat16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.checkpoints.checkpoint import Checkpoint, StoredTensor, list_few
from asyncgen.errors import ModelLoadError
from asyncgen.runtime.transfer import host_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

METHOD: Final = "mxfp4"
"""Name in ``quantization_config.quant_method``."""

_BLOCK: Final = 32
"""Numbers that share a scale."""
_BYTES: Final = _BLOCK // 2
_BIAS: Final = 127
_NO_NUMBER: Final = 255
"""Scale of a block that holds no numbers."""
_SIZES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_CHUNK: Final = 1 << 16
"""Blocks that are widened in one step."""


def join_pairs(checkpoint: Checkpoint) -> Checkpoint:
    """Join each pair of blocks and scales to one tensor of bfloat16 numbers.

    Its shape is ``[experts, in, out]``, as in files that are not quantised, although it is stored,
    and read, as ``[experts, out, in]``.

    Args:
        checkpoint: The stored tensors.

    Raises:
        ModelLoadError: Blocks or scales are missing, or do not fit together.
    """
    tensors = dict(checkpoint.tensors)
    halves = [name for name in tensors if name.endswith(("_blocks", "_scales"))]
    names = dict.fromkeys(name.rpartition("_")[0] for name in halves)
    wrong = [name for name in names if not _is_pair(tensors, name)]
    if wrong or not names:
        raise ModelLoadError(
            f"{checkpoint.folder / 'config.json'} says that it is quantised ({METHOD}), but "
            + (list_few(f"{len(wrong)} tensors are no blocks and scales", wrong) if wrong else "")
            + ("" if names else "has no such tensors")
            + "; download it again"
        )
    for name in names:
        blocks, scales = tensors.pop(f"{name}_blocks"), tensors.pop(f"{name}_scales")
        experts, rows, count, _ = blocks.shape
        tensors[name] = StoredTensor(
            blocks.file,
            "BF16",
            (experts, count * _BLOCK, rows),
            blocks.offset,
            blocks.num_bytes + scales.num_bytes,
            scales,
        )
    return replace(checkpoint, tensors=tensors)


def widen(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers of blocks, ``[blocks, 32]`` in bfloat16, which represents all of them.

    Args:
        blocks: Codes, ``[blocks, 16]``, uint8.
        scales: Scale of each block, ``[blocks]``, uint8.
    """
    values = _values().index_select(0, blocks.flatten().to(torch.int32)).view(-1, _BLOCK)
    return values.mul_(_powers().index_select(0, scales.to(torch.int32))[:, None])


def widen_into(target: Tensor, blocks: Tensor, scales: Tensor) -> None:
    """Fill a flat ``target`` of any floating dtype with the numbers of flat blocks and scales.

    Args:
        target: ``[numbers]``.
        blocks: ``[numbers / 2]``, uint8.
        scales: ``[numbers / 32]``, uint8.
    """
    rows, codes = target.view(-1, _BLOCK), blocks.view(-1, _BYTES)
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows[part] = widen(codes[part], scales[part])


def check_scales(scales: Tensor, source: StoredTensor) -> None:
    """Refuse blocks that hold no numbers: a seldom chosen expert would hide them.

    Args:
        scales: Scale of each block, uint8.
        source: The tensor of the scales.

    Raises:
        ModelLoadError: A scale is 255.
    """
    if bool((scales == _NO_NUMBER).any()):
        shape = list(source.shape)
        raise ModelLoadError(
            f"{source.file}: a block of experts {shape} ({METHOD}) has the scale {_NO_NUMBER}, "
            "which stands for no number; download it again"
        )


def _is_pair(tensors: Mapping[str, StoredTensor], name: str) -> bool:
    """Tell whether blocks and scales of a tensor exist and fit, and the tensor itself does not."""
    blocks, scales = tensors.get(f"{name}_blocks"), tensors.get(f"{name}_scales")
    is_twice = name in tensors
    if blocks is None or scales is None or is_twice or not blocks.kind == scales.kind == "U8":
        return False
    return len(blocks.shape) == 4 and blocks.shape == (*scales.shape, _BYTES)


def _values() -> Tensor:
    """Return both numbers of each byte, ``[256, 2]``."""
    codes = torch.tensor([*_SIZES, *(-size for size in _SIZES)], dtype=torch.bfloat16, device="cpu")
    byte = host_range(256)
    return torch.stack((codes[byte & 15], codes[byte >> 4]), dim=1)


def _powers() -> Tensor:
    """Return the factor of each scale, ``[256]``."""
    exponents = torch.arange(256, dtype=torch.float64, device="cpu") - _BIAS
    powers = torch.exp2(exponents)
    powers[_NO_NUMBER] = torch.nan
    return powers.to(torch.bfloat16)
