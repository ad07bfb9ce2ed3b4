"""Locate the tensors of a checkpoint by the headers of its safetensors files.

No tensor is read here, and pickle files are never opened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import torch

from asyncgen.checkpoints.hub import read_json, refuse_pointer
from asyncgen.checkpoints.json_size import check_json
from asyncgen.checkpoints.safetensors_header import read_entries
from asyncgen.checkpoints.stored_files import as_path, is_stored, open_stored
from asyncgen.errors import ModelLoadError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from asyncgen.models.kernels.packed_weight import PackedWeight


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Dtypes by their names in a file."""

_MOST_TENSORS = 2**18
_MOST_HEADER = 2**26
"""Tensors of all files, and bytes of the header of one; the largest packed models have 220,000."""

_MOST_METADATA = 50_000
"""Entries of a file beside its tensors, such as other names of them."""

_MOST_SHARDS = 1000

_UNREADABLE = (OSError, MemoryError, ValueError, RecursionError)

_SHOWN = 4
"""Most names of a kind that an error lists."""

_LONGEST = 200
"""Most characters of a name that an error shows."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Memory layout of a packed tensor that stays packed.

    Attributes:
        num_bytes: Size in memory.
        layout: Equal for tensors whose rows may be joined to one matrix.
    """

    num_bytes: int
    layout: object = None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location of a tensor in a file, and the way to read it.

    Attributes:
        file: The file.
        kind: Dtype as the file spells it, such as ``"BF16"``; for MXFP4 that of its numbers, for a
            packed tensor that of the unpacked one.
        shape: Shape, ``[out, in]`` for a packed tensor.
        offset: First byte, from the start of the file.
        num_bytes: Length in bytes.
        scales: Scales of its blocks, for MXFP4 (`asyncgen.checkpoints.mxfp4`).
        made: Reads a tensor that is stored in another form, in a floating dtype
            (`asyncgen.checkpoints.gguf`); raises `ModelLoadError`.
        packed: Reads a tensor of 4 or 8 bits (`asyncgen.checkpoints.packed`); raises
            `ModelLoadError`.
        unpacked: Reads a packed tensor as floats, if no layout of packed weights is exact; raises
            `ModelLoadError`.
        kept: Layout if it stays packed; ``None``: its size is that in the file.
    """

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    scales: StoredTensor | None = None
    made: Callable[[torch.dtype], torch.Tensor] | None = None
    packed: Callable[[], PackedWeight] | None = None
    unpacked: Callable[[], torch.Tensor] | None = None
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors of a folder, known from their headers alone.

    Attributes:
        folder: The folder.
        tensors: Location of each tensor, by name; a shared tensor has several names.
    """

    folder: Path
    tensors: Mapping[str, StoredTensor]

    def below(self, prefix: str) -> Checkpoint:
        """Return the same tensors with the first part of their names added, if all lack it.

        Checkpoints of the layers alone, without the head, lack it.

        Args:
            prefix: First part with its dot, such as ``"transformer."``.
        """
        if not prefix or any(name.startswith(prefix) for name in self.tensors):
            return self
        return Checkpoint(
            self.folder, {prefix + name: tensor for name, tensor in self.tensors.items()}
        )


def open_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Read the headers of a checkpoint, single file or sharded.

    Args:
        folder: Folder with ``model.safetensors`` or ``model.safetensors.index.json``.

    Raises:
        ModelLoadError: There are no safetensors weights (pickle files are refused), a file is
            missing, truncated or corrupt, or the index points outside the folder.
    """
    path = as_path(folder)
    if is_stored(path / SINGLE):
        return Checkpoint(path, _read_header(path / SINGLE))
    if is_stored(path / INDEX):
        return Checkpoint(path, _read_shards(path))
    raise ModelLoadError(_no_weights(path))


def _read_shards(folder: Path) -> dict[str, StoredTensor]:
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise ModelLoadError(f"{index} has no `weight_map` of names to files; download it again")
    names = sorted(set(weight_map.values()))
    if len(names) > _MOST_SHARDS:
        raise ModelLoadError(f"{index} names {len(names)} files; at most {_MOST_SHARDS} are read")
    headers: dict[str, dict[str, StoredTensor]] = {}
    left = _MOST_TENSORS
    for name in names:
        headers[name] = _read_header(_shard(index, name), left)
        left = max(1, left - len(headers[name]))
    absent = [name for name, file in weight_map.items() if name not in headers[file]]
    if absent:
        listed = list_few(f"{len(absent)} of its tensors are not in the files it names", absent)
        raise ModelLoadError(f"{index} does not match its files: {listed}; download it again")
    tensors = {name: found for header in headers.values() for name, found in header.items()}
    return tensors | {name: headers[file][name] for name, file in weight_map.items()}


def _shard(index: Path, name: str) -> Path:
    """Return the file that an index names."""
    shown = shorten(name)
    plain = PurePosixPath(name.replace("\\", "/"))
    if not plain.parts or "\0" in name:
        raise ModelLoadError(
            f"{index}: `weight_map` names {shown}, which is no file name; download it again"
        )
    if plain.is_absolute() or ".." in plain.parts or ":" in plain.parts[0]:
        raise ModelLoadError(
            f"{index} points outside its folder, to {shown}; do not use this checkpoint"
        )
    if len(plain.parts) > 2:
        raise ModelLoadError(f"{index} names {shown}: a file lies beside it, or one folder below")
    file = index.parent / plain
    try:
        is_there = file.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or not allowed here
        raise ModelLoadError(
            f"{index}: `weight_map` names {shown}, which is no file name "
            f"({type(error).__name__}); download it again"
        ) from error
    if not is_there:
        raise ModelLoadError(f"{index} names {shown[1:-1]}, which is missing; download it again")
    return file


def _read_header(file: Path, most: int = _MOST_TENSORS) -> dict[str, StoredTensor]:
    """Read the locations of the tensors of a file.

    Args:
        file: The file.
        most: Most tensors that it may have.
    """
    try:
        with open_stored(file) as stream:
            refuse_pointer(file, stream)
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if length > _MOST_HEADER:
                raise ValueError(f"a header of {length} bytes; at most {_MOST_HEADER} are read")
            text = stream.read(length)
        lists = text.count(b"[") + text.count(b"{")
        check_json(file, text, 4 * most, _MOST_METADATA + 3 * lists)
        entries, metadata = read_entries(text, size - 8 - length)
    except _UNREADABLE as error:
        raise ModelLoadError(
            f"{file} is truncated or corrupt ({_cut(str(error))}); download it again"
        ) from error
    tensors = {
        name: StoredTensor(file, kind, shape, 8 + length + begin, end - begin)
        for begin, end, name, kind, shape in entries
    }
    # `safetensors.torch.save_model` writes a shared tensor once and names its other names here.
    shared = {name: tensors[kept] for name, kept in metadata.items() if kept in tensors}
    return shared | tensors


def _no_weights(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r}; check the path"
    pickles = sorted(
        file.name
        for file in folder.iterdir()
        if file.suffix in {".bin", ".pt", ".pth", ".ckpt"} and file.is_file()
    )
    if pickles:
        return (
            f"{folder} has pickle weights only ({list_few('', pickles).strip(': ')}); they can "
            "run code when opened, so they are refused: convert them to safetensors, for example "
            "with `transformers`: from_pretrained(folder), then save_pretrained(folder)"
        )
    return f"{folder} has neither {SINGLE} nor {INDEX}; check the path, or download it again"


def is_floating(kind: str) -> bool:
    """Tell whether the name of a dtype in a file is a supported floating one."""
    return kind in DTYPES and DTYPES[kind].is_floating_point


def list_few(title: str, names: Sequence[str]) -> str:
    """List the first few of many names, after a title."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    shown = map(_cut, names[:_SHOWN])
    return f"{title}: {', '.join(shown)}{more}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
