"""Read the stored tensors of a checkpoint into new ones, in any stored form.

Only plain file reads are used. A memory map would count towards the process's memory until it is
closed, and a file that is truncated while it is mapped kills the process.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, BinaryIO, Self

import torch

from asyncgen.checkpoints.checkpoint import DTYPES
from asyncgen.checkpoints.mxfp4 import check_scales, widen_into
from asyncgen.checkpoints.packed.packing_plan import is_made, ordered
from asyncgen.checkpoints.stored_files import open_stored
from asyncgen.errors import ModelLoadError
from asyncgen.native.weight_memory import empty_temporary
from asyncgen.runtime.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from asyncgen.checkpoints.checkpoint import Checkpoint, StoredTensor
    from asyncgen.models.kernels.packed_weight import PackedWeight
    from asyncgen.models.weight_map import WeightRule


_CHUNK = 8 << 20
"""Bytes of one read: the size of a conversion's buffer, and the step of the progress bar."""


class TensorReader:
    """Reads stored tensors into new ones; keeps files open until its context ends."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._files: dict[Path, BinaryIO] = {}
        self._buffer: torch.Tensor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def join(
        self, sources: Sequence[StoredTensor], dtype: torch.dtype, *, transposed: int | None = None
    ) -> torch.Tensor:
        """Read tensors into one, concatenated along the first axis.

        Args:
            sources: The tensors.
            dtype: Dtype of the result.
            transposed: Number of matrices in each tensor, which are transposed; ``None``: they are
                not transposed.
        """
        if any(is_made(source) or source.made is not None for source in sources):
            return self._made(sources, dtype, transposed=transposed)
        if any(source.scales is not None for source in sources):
            whole = [self._widened(source, dtype) for source in sources]
            joined = whole[0] if len(whole) == 1 else torch.cat(whole)
            return joined if transposed else joined.mT.contiguous()
        if transposed:
            whole = [self.join([source], dtype) for source in sources]
            if transposed > 1:
                whole = [matrix.view(transposed, -1, matrix.shape[-1]) for matrix in whole]
            return torch.cat([matrix.mT for matrix in whole]).contiguous()
        first = sources[0].shape
        shape = (sum(source.shape[0] for source in sources), *first[1:]) if first else first
        joined = empty_temporary(tuple(shape), dtype)
        flat = joined.view(-1)
        start = 0
        for source in sources:
            end = start + math.prod(source.shape)
            self._read(source, flat[start:end])
            start = end
        return joined

    def is_broken(self, tensor: StoredTensor) -> bool:
        """Read a tensor; tell whether some of its elements are NaN or infinite."""
        kind = DTYPES[tensor.kind]
        return kind.is_floating_point and not is_finite(self.join([tensor], kind))

    def read_packed(self, rule: WeightRule, checkpoint: Checkpoint) -> list[PackedWeight]:
        """Read packed tensors, their rows concatenated in the order of a rule.

        Raises:
            ModelLoadError: A scale is not finite.
        """
        parts = []
        for name in rule.sources:
            part = self._packed(checkpoint.tensors[name])
            if not part.is_finite():
                raise ModelLoadError(tell_broken(checkpoint, name))
            parts.append(part)
        return ordered(parts, rule.order)

    def _packed(self, source: StoredTensor) -> PackedWeight:
        assert source.packed is not None
        weight = source.packed()
        self._progress.advance(source.num_bytes)
        return weight

    def _made(
        self, sources: Sequence[StoredTensor], dtype: torch.dtype, *, transposed: int | None
    ) -> torch.Tensor:
        """Read tensors of which some are stored in another form; those are not transposed."""
        whole = []
        for source in sources:
            if source.packed is not None:
                whole.append(self._packed(source).dequantise().to(dtype))
                continue
            if source.unpacked is not None:
                whole.append(source.unpacked().to(dtype))
            elif source.made is not None:
                whole.append(source.made(dtype))
            else:
                whole.append(self.join([source], dtype, transposed=transposed))
                continue
            self._progress.advance(source.num_bytes)
        return whole[0] if len(whole) == 1 else torch.cat(whole)

    def _widened(self, source: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
        """Read a tensor in MXFP4 in its stored order, which is transposed."""
        assert source.scales is not None
        *others, columns, rows = source.shape
        joined = empty_temporary((*others, rows, columns), dtype)
        blocks, scales = (
            torch.empty(math.prod(each.shape) // share, dtype=torch.uint8, device="cpu")
            for each, share in ((source, 2), (source.scales, 1))
        )
        for place, tensor in ((source, blocks), (source.scales, scales)):
            file = self._open(place.file)
            file.seek(place.offset)
            self._fill(file, tensor)
        check_scales(scales, source)
        widen_into(joined.view(-1), blocks, scales)
        return joined

    def _read(self, source: StoredTensor, target: torch.Tensor) -> None:
        """Fill the flat ``target`` from the file, converting where the dtypes differ."""
        file = self._open(source.file)
        file.seek(source.offset)
        kind = DTYPES[source.kind]
        if kind == target.dtype:
            self._fill(file, target)
            return
        if self._buffer is None:
            self._buffer = torch.empty(_CHUNK, dtype=torch.uint8, device="cpu")
        buffer = self._buffer.view(kind)
        for start in range(0, len(target), len(buffer)):
            part = target[start : start + len(buffer)]
            self._fill(file, buffer[: len(part)])
            part.copy_(buffer[: len(part)])

    def _fill(self, file: BinaryIO, target: torch.Tensor) -> None:
        size = target.numel() * target.element_size()
        # Not `Tensor.numpy`: it lacks bfloat16, and numpy is not a dependency.
        view = memoryview((ctypes.c_char * size).from_address(target.data_ptr())).cast("B")
        while view:
            count = file.readinto(view[:_CHUNK])  # type: ignore[attr-defined]
            if not count:
                raise ModelLoadError(f"{file.name} became shorter while it was read")
            self._progress.advance(count)
            view = view[count:]

    def _open(self, path: Path) -> BinaryIO:
        if path not in self._files:
            self._files[path] = open_stored(path)
        return self._files[path]


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether all elements are finite; the sum needs no temporary tensor."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def tell_broken(checkpoint: Checkpoint, name: str) -> str:
    """Return the message for a tensor with NaN.

    Args:
        checkpoint: The stored tensors.
        name: Name of the tensor.
    """
    return (
        f"{checkpoint.tensors[name].file}: `{name}` holds NaN or infinities, so no token could be "
        "picked; download it again, or ask those who made it"
    )


def find_broken(checkpoint: Checkpoint) -> str | None:
    """Read all tensors again; return the first one with NaN or infinities, or ``None``.

    Args:
        checkpoint: The stored tensors.
    """
    with Progress(0, "looking for NaN", progress=False) as bar, TensorReader(bar) as reader:
        for name, tensor in checkpoint.tensors.items():
            if tensor.kind in DTYPES and reader.is_broken(tensor):
                return name
    return None
