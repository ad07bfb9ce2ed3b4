"""Read tensors of GGUF files, as numbers or packed, a chunk at a time."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

from asyncgen import native
from asyncgen.checkpoints.checkpoint import Kept
from asyncgen.checkpoints.gguf.block_formats import Parts, parts_of, unpack
from asyncgen.checkpoints.stored_files import open_stored
from asyncgen.errors import ModelLoadError
from asyncgen.models.kernels.packed_weight import PackedWeight
from asyncgen.native.weight_memory import empty_temporary

if TYPE_CHECKING:
    from typing import BinaryIO

    from torch import Tensor

    from asyncgen.checkpoints.gguf.gguf_file import PackedTensor
    from asyncgen.checkpoints.gguf.tensor_types import TensorType

_CHUNK: Final = 1 << 20
"""Numbers that are unpacked in one step."""
_BYTE: Final = torch.uint8
_PARTS: Final = ("codes", "scales", "minimums", "super_scales", "super_minimums")
"""Parts of a packed matrix, in the order of the kernels' arguments."""
_SHARING: Final = ("Q2_K",)
"""Types whose scale and minimum fit into one byte, which kernels use."""
_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_as(tensor: PackedTensor, dtype: torch.dtype, *, less: float = 0.0) -> Tensor:
    """Read the numbers of a tensor.

    Args:
        tensor: Its location.
        dtype: Dtype of the result.
        less: Number that is subtracted from each one, in float32.

    Raises:
        ModelLoadError: The tensor has integers, or the file became shorter.
    """
    kind, total = tensor.kind, math.prod(tensor.shape)
    if kind.plain is not None and kind.name not in _PLAIN:
        raise ModelLoadError(f"{tensor.file}: tensor {tensor.name} is of type {kind.name}")
    result = empty_temporary(tensor.shape, dtype)
    flat, step = result.view(-1), _CHUNK // kind.numbers * kind.numbers
    with open_stored(tensor.file) as stream:
        stream.seek(tensor.offset)
        for start in range(0, total, step):
            part = flat[start : start + step]
            raw = _read(stream, len(part) // kind.numbers * kind.num_bytes)
            if kind.plain is None:
                numbers = unpack(kind.name, raw.view(-1, kind.num_bytes)).view(-1)
            else:
                numbers = raw.view(_PLAIN[kind.name])
            part.copy_(numbers.float() - less if less else numbers)
    return result


def read_packed(tensor: PackedTensor) -> PackedWeight:
    """Read a matrix in a layout of packed weights, with exactly the numbers of the file.

    Args:
        tensor: Its location; of a packed type, with two sides.

    Raises:
        ModelLoadError: The file became shorter.
    """
    kind, (rows, inputs) = tensor.kind, tensor.shape
    each = inputs // kind.numbers * kind.num_bytes
    step = max(1, _CHUNK // inputs)
    sample = parts_of(
        kind.name, torch.zeros((inputs // kind.numbers, kind.num_bytes), dtype=_BYTE, device="cpu")
    )
    whole = {
        name: empty_temporary((rows, part.shape[1]), part.dtype)
        for name, part in _by_rows(sample, 1).items()
    }
    with open_stored(tensor.file) as stream:
        stream.seek(tensor.offset)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            blocks = _read(stream, count * each).view(-1, kind.num_bytes)
            part = {name: one[start : start + count] for name, one in whole.items()}
            _take_apart(kind.name, blocks, part)
    return PackedWeight(**whole, inputs=inputs, group=sample.group, table=sample.table)


def kept_as(tensor: PackedTensor) -> Kept:
    """Return the size and layout of a matrix that stays packed.

    Args:
        tensor: Its location.
    """
    each, layout = _kept_block(tensor.kind)
    return Kept(math.prod(tensor.shape) // tensor.kind.numbers * each, layout)


@lru_cache
def _kept_block(kind: TensorType) -> tuple[int, object]:
    """Return the bytes of a block in memory, and its layout."""
    parts = parts_of(kind.name, torch.zeros((1, kind.num_bytes), dtype=_BYTE, device="cpu"))
    tensors = _by_rows(parts, 1)
    if kind.name in _SHARING:
        del tensors["minimums"]
    layout = parts.group, parts.table, *((name, one.dtype) for name, one in tensors.items())
    return sum(one.nbytes for one in tensors.values()), layout


def _take_apart(name: str, blocks: Tensor, whole: dict[str, Tensor]) -> None:
    """Write the parts of blocks of some rows."""
    if native.kernels is not None:
        native.kernels.take_blocks_apart(name, blocks, *(whole.get(part) for part in _PARTS))
        return
    rows = len(whole["codes"])
    for part, tensor in _by_rows(parts_of(name, blocks), rows).items():
        whole[part].copy_(tensor)


def _by_rows(parts: Parts, rows: int) -> dict[str, Tensor]:
    """Return the tensors of a `PackedWeight`, two codes of a table in a byte."""
    codes = parts.codes
    if parts.table is not None:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    found = {name: getattr(parts, name) for name in _PARTS} | {"codes": codes}
    return {name: part.reshape(rows, -1) for name, part in found.items() if part is not None}


def _read(stream: BinaryIO, size: int) -> Tensor:
    """Read the next bytes of a file, uint8."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise ModelLoadError(f"{stream.name} became shorter while it was read")
        view = view[count:]
    return torch.frombuffer(data, dtype=torch.uint8)


def read_numbers(tensor: PackedTensor) -> list[float]:
    """Read the numbers of a small tensor.

    Raises:
        ModelLoadError: As `read_as`.
    """
    numbers: list[float] = read_as(tensor, torch.float32).view(-1).tolist()
    return numbers
