"""Read tensors of a checkpoint in their stored dtype, and split words into codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from asyncgen.checkpoints.checkpoint import DTYPES
from asyncgen.checkpoints.stored_files import open_stored
from asyncgen.errors import ModelLoadError

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.checkpoints.checkpoint import StoredTensor

KINDS: Final = {
    **DTYPES,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""Dtypes by their names in a file, including those of 8 bits."""


def read_raw(source: StoredTensor) -> Tensor:
    """Read a tensor in its stored dtype.

    Raises:
        ModelLoadError: Its dtype is unknown, or the file became shorter.
    """
    if source.kind not in KINDS:
        raise ModelLoadError(f"{source.file}: a tensor is {source.kind}, which is not known")
    kind = KINDS[source.kind]
    data = bytearray(source.num_bytes)
    with open_stored(source.file) as file, memoryview(data) as view:
        file.seek(source.offset)
        done = 0
        while done < len(data):
            count = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise ModelLoadError(f"{source.file} became shorter while it was read")
            done += count
    if not data:
        return torch.empty(source.shape, dtype=kind, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).view(source.shape)


def fields(words: Tensor, bits: int) -> Tensor:
    """Split words of 32 bits into numbers, the lowest first: ``[…, n * 32 / bits]`` uint8.

    Args:
        words: ``[…, n]`` int32.
        bits: 4 or 8.
    """
    found = words.contiguous().view(torch.uint8)
    if bits == 8:
        return found
    return torch.stack((found & 15, found >> 4), dim=-1).flatten(-2)


def nibbles(codes: Tensor) -> Tensor:
    """Pack two codes a byte, the first in the lower half: ``[…, n]`` to ``[…, n / 2]`` uint8."""
    return codes[..., 0::2] | codes[..., 1::2] << 4
