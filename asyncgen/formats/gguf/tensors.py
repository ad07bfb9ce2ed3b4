"""Reads tensors of GGUF files as numbers, a chunk at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.errors import ModelLoadError
from asyncgen.formats.gguf.unpack import unpack
from asyncgen.native.memory import passing

if TYPE_CHECKING:
    from asyncgen.formats.gguf.reader import PackedTensor

_CHUNK: Final = 1 << 20
"""Numbers that are unpacked at once."""
_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_as(
    tensor: PackedTensor, dtype: torch.dtype, *, first: int = 0, count: int = -1, less: float = 0.0
) -> torch.Tensor:
    """The numbers of a tensor, or of a part of it along its first side.

    Args:
        tensor: Where it lies.
        dtype: Of the result.
        first: Where the part begins.
        count: How much of the first side it is; -1: all.
        less: What is taken off each number, in float32.

    Raises:
        ModelLoadError: It is of whole numbers, or the file became shorter.
    """
    kind, sides = tensor.kind, tensor.shape
    if kind.plain is not None and kind.name not in _PLAIN:
        raise ModelLoadError(f"{tensor.file}: tensor {tensor.name} is of type {kind.name}")
    count = sides[0] if count < 0 else count
    each = math.prod(sides[1:])
    total, skipped = count * each, first * each
    result = passing((count, *sides[1:]), dtype)
    flat, step = result.view(-1), _CHUNK // kind.numbers * kind.numbers
    with tensor.file.open("rb", buffering=0) as stream:
        stream.seek(tensor.offset + skipped // kind.numbers * kind.num_bytes)
        for start in range(0, total, step):
            part = flat[start : start + step]
            size = len(part) // kind.numbers * kind.num_bytes
            data = bytearray(size)
            view = memoryview(data)
            while view:
                got = stream.readinto(view)
                if not got:
                    raise ModelLoadError(f"{tensor.file} became shorter while it was read")
                view = view[got:]
            raw = torch.frombuffer(data, dtype=torch.uint8)
            if kind.plain is None:
                numbers = unpack(kind.name, raw.view(-1, kind.num_bytes)).view(-1)
            else:
                numbers = raw.view(_PLAIN[kind.name])
            part.copy_(numbers.float() - less if less else numbers)
    return result


def read_numbers(tensor: PackedTensor) -> list[float]:
    """The numbers of a small tensor.

    Raises:
        ModelLoadError: As `read_as`.
    """
    numbers: list[float] = read_as(tensor, torch.float32).view(-1).tolist()
    return numbers
