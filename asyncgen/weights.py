"""Reads safetensors checkpoints straight into a model that was built on the meta device.

Everything that can be wrong is found from the headers before the first tensor is read. Tensors are
then read one target at a time with plain file reads: a memory map would count towards the
process's memory until it is closed, and one fused matrix is the most that exists twice. (The one
that stays mapped is a table of which a step reads a few rows.) Pickle files are never opened.
This module knows no architecture; the model's ``weight_map`` does.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.hub import is_pointer, read_json
from asyncgen.native.memory import passing
from asyncgen.progress import Progress

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from asyncgen.weight_map import WeightRule


SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_DTYPES = {
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

_MODEL_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}

_CHUNK = 8 << 20
"""Bytes read at once: the size of a conversion's buffer, and the step of the progress bar."""

_SHOWN = 4
"""How many names of a kind an error lists."""


class Fillable(Protocol):
    """A model that was built on the meta device and says what it is made of."""

    def weight_map(self) -> Sequence[WeightRule]:
        """How each parameter is made."""

    def ignored_weights(self) -> Sequence[str]:
        """Regular expressions of stored names that the model does without."""

    def get_submodule(self, target: str) -> nn.Module:
        """Return the module of a dotted name."""

    def stays_in_file(self) -> str | None:
        """Parameter whose stored form will do once `use_stored` has it; ``None``: all are read."""

    def use_stored(self, stored: torch.Tensor) -> None:
        """Take a read-only view of the file in the place of the parameter just prepared."""

    def prepare(self) -> None:
        """Get ready to compute, after every weight has arrived."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies.

    Attributes:
        file: The safetensors file.
        kind: Its dtype as the file spells it, such as ``"BF16"``.
        shape: Its shape.
        offset: Its first byte, from the start of the file.
        num_bytes: Its length in bytes.
    """

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a folder, known from their headers alone.

    Attributes:
        folder: The folder.
        tensors: Where each tensor lies, by name.
    """

    folder: Path
    tensors: Mapping[str, StoredTensor]

    def below(self, prefix: str) -> Checkpoint:
        """The same tensors under the names that they have inside a whole model.

        Some checkpoints were saved from the stack of layers alone, without the head, and their
        names lack the first part.

        Args:
            prefix: That part with its dot, such as ``"transformer."``.
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
    path = Path(folder)
    if (path / SINGLE).is_file():
        return Checkpoint(path, _read_header(path / SINGLE))
    if (path / INDEX).is_file():
        return Checkpoint(path, _read_shards(path))
    raise ModelLoadError(_no_weights(path))


def resolve_dtype(
    dtype: torch.dtype | str | None, config: Mapping[str, object], checkpoint: Checkpoint
) -> torch.dtype:
    """Decide the dtype that the weights are loaded in.

    Args:
        dtype: A dtype, its name, or ``"auto"`` (the same as ``None``): what ``config.json`` says,
            else the dtype of the first floating tensor stored.
        config: Content of ``config.json``.
        checkpoint: The checkpoint.

    Raises:
        InvalidRequestError: ``dtype`` is not one that a model can run in.
        ModelLoadError: ``"auto"``, and the checkpoint does not say either.
    """
    if dtype is not None and dtype != "auto":
        return _check_dtype(dtype)
    stated = config.get("dtype") or config.get("torch_dtype")
    if stated is not None:
        try:
            return _check_dtype(stated)
        except InvalidRequestError as error:
            raise ModelLoadError(
                f"config.json of {checkpoint.folder} asks for dtype {stated!r}; "
                "pass `dtype=` to choose another"
            ) from error
    for tensor in checkpoint.tensors.values():
        if _is_floating(tensor.kind):
            return _DTYPES[tensor.kind]
    raise ModelLoadError(
        f"neither config.json nor the weights of {checkpoint.folder} tell a dtype; pass `dtype=`"
    )


def load_weights(
    core: Fillable,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    ignored: Sequence[str] = (),
    progress: bool = True,
) -> None:
    """Fill a model that was built on the meta device.

    Names and shapes are all checked first. Then every parameter is read, converted, moved and
    assigned, and its module prepared, one module at a time, the largest first: what a module needs
    for a moment is then small beside what is not loaded yet.

    Args:
        core: The model; its ``weight_map`` says what is made of what.
        checkpoint: The stored tensors.
        dtype: Dtype of the parameters.
        device: Where they go.
        ignored: More regular expressions of stored names that may be left alone.
        progress: Whether a bar may be shown for a load of more than a second.

    Raises:
        ModelLoadError: Weights are missing, unexpected or of another shape, quantised, or a file
            changed under the reader's hands.
    """
    rules = core.weight_map()
    in_file = core.stays_in_file() if torch.device(device).type == "cpu" else None
    check_fit(rules, (*core.ignored_weights(), *ignored), checkpoint)
    total = sum(checkpoint.tensors[source].num_bytes for rule in rules for source in rule.sources)
    with Progress(total, "loading weights", enabled=progress) as bar, _Reader(bar) as reader:
        for module_name, group in _by_module(rules):
            module = core.get_submodule(module_name)
            for rule in group:
                stored = [checkpoint.tensors[source] for source in rule.sources]
                tensor = reader.join(stored, dtype, transposed=rule.transposed).to(device)
                name = rule.target.rpartition(".")[2]
                setattr(module, name, nn.Parameter(tensor, requires_grad=False))
                # Else this name would keep the original alive while `prepare` makes its copy.
                del tensor
            prepare = getattr(module, "prepare", None)
            if prepare is not None:
                prepare()
            if in_file == group[0].target:
                core.use_stored(_map(checkpoint.tensors[group[0].sources[0]]))
    core.prepare()


def check_fit(rules: Sequence[WeightRule], ignored: Iterable[str], checkpoint: Checkpoint) -> None:
    """Compare the names and shapes that a model needs with those that are stored.

    Args:
        rules: The model's weight map.
        ignored: Regular expressions of stored names that the model does without.
        checkpoint: The stored tensors.

    Raises:
        ModelLoadError: They differ; names the first few missing, unexpected and misshapen ones.
    """
    needed = {
        source: tuple(shape)
        for rule in rules
        for source, shape in zip(rule.sources, rule.shapes, strict=True)
    }
    stored = checkpoint.tensors
    patterns = [re.compile(pattern) for pattern in ignored]
    there = [name for name in needed if name in stored]
    found = {
        "missing": [name for name in needed if name not in stored],
        "unexpected": [
            name
            for name in stored
            if name not in needed and not any(pattern.search(name) for pattern in patterns)
        ],
        "of another shape": [
            f"{name} is {list(stored[name].shape)}, expected {list(needed[name])}"
            for name in there
            if stored[name].shape != needed[name]
        ],
        "quantised or of a dtype that is not supported": [
            f"{name} is {stored[name].kind}"
            for name in there
            if not _is_floating(stored[name].kind)
        ],
    }
    faults = [_list_few(f"{len(names)} {fault}", names) for fault, names in found.items() if names]
    if faults:
        raise ModelLoadError(
            f"the weights in {checkpoint.folder} do not fit its config.json: {'; '.join(faults)}; "
            "check that both come from the same model, and download it again"
        )


class _Reader:
    """Reads stored tensors into fresh ones; keeps files open until it is left."""

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
        self, sources: Sequence[StoredTensor], dtype: torch.dtype, *, transposed: bool = False
    ) -> torch.Tensor:
        """Read tensors one behind the other into one, along the first axis."""
        if transposed:
            whole = [self.join([source], dtype) for source in sources]
            return torch.cat([matrix.t() for matrix in whole]).contiguous()
        first = sources[0].shape
        shape = (sum(source.shape[0] for source in sources), *first[1:]) if first else first
        joined = passing(tuple(shape), dtype)
        flat = joined.view(-1)
        start = 0
        for source in sources:
            end = start + math.prod(source.shape)
            self._read(source, flat[start:end])
            start = end
        return joined

    def _read(self, source: StoredTensor, target: torch.Tensor) -> None:
        """Fill the flat ``target`` from the file, converting where the dtypes differ."""
        file = self._open(source.file)
        file.seek(source.offset)
        kind = _DTYPES[source.kind]
        if kind == target.dtype:
            self._fill(file, target)
            return
        if self._buffer is None:
            self._buffer = torch.empty(_CHUNK, dtype=torch.uint8)
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
            self._files[path] = path.open("rb", buffering=0)
        return self._files[path]


def _map(source: StoredTensor) -> torch.Tensor:
    """A view of a tensor where it lies in its file; only what is read of it takes memory."""
    end = source.offset + source.num_bytes
    whole = torch.from_file(str(source.file), shared=False, size=end, dtype=torch.uint8)
    return whole[source.offset :].view(_DTYPES[source.kind]).view(source.shape)


def _by_module(rules: Sequence[WeightRule]) -> list[tuple[str, list[WeightRule]]]:
    """Group rules by the module that they fill, the largest module first."""
    groups: dict[str, list[WeightRule]] = {}
    for rule in rules:
        groups.setdefault(rule.target.rpartition(".")[0], []).append(rule)
    return sorted(
        groups.items(),
        key=lambda item: -sum(math.prod(shape) for rule in item[1] for shape in rule.shapes),
    )


def _read_shards(folder: Path) -> dict[str, StoredTensor]:
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) for name in weight_map.values()
    ):
        raise ModelLoadError(f"{index} has no `weight_map` of names to files; download it again")
    headers: dict[str, dict[str, StoredTensor]] = {}
    for name in sorted(set(weight_map.values())):
        plain = PurePosixPath(name.replace("\\", "/"))
        if plain.is_absolute() or ".." in plain.parts or ":" in plain.parts[0]:
            raise ModelLoadError(
                f"{index} points outside its folder, to {name!r}; do not use this checkpoint"
            )
        if not (folder / plain).is_file():
            raise ModelLoadError(f"{index} names {name}, which is missing; download it again")
        headers[name] = _read_header(folder / plain)
    absent = [name for name, file in weight_map.items() if name not in headers[file]]
    if absent:
        listed = _list_few(f"{len(absent)} of its tensors are not in the files it names", absent)
        raise ModelLoadError(f"{index} does not match its files: {listed}; download it again")
    tensors = {name: found for header in headers.values() for name, found in header.items()}
    return tensors | {name: headers[file][name] for name, file in weight_map.items()}


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """Read where the tensors of a file lie, after the safetensors library found it sound."""
    if is_pointer(file):
        raise ModelLoadError(
            f"{file} is a git-lfs pointer, not the file itself; run `git lfs pull` in its folder"
        )
    try:
        with safe_open(file, framework="pt"):
            pass
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelLoadError(
            f"{file} is truncated or corrupt ({error}); download it again"
        ) from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        tensors[name] = StoredTensor(
            file, entry["dtype"], tuple(entry["shape"]), 8 + length + begin, end - begin
        )
    return tensors


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
            f"{folder} has pickle weights only ({_list_few('', pickles).strip(': ')}); they can "
            "run code when opened, so they are refused: convert them to safetensors, for example "
            "with `transformers`: from_pretrained(folder), then save_pretrained(folder)"
        )
    return f"{folder} has neither {SINGLE} nor {INDEX}; check the path, or download it again"


def _check_dtype(dtype: object) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in _MODEL_DTYPES:
        raise InvalidRequestError("dtype", dtype, f'use "auto" or one of {list(_MODEL_DTYPES)}')
    return _MODEL_DTYPES[name]


def _is_floating(kind: str) -> bool:
    return kind in _DTYPES and _DTYPES[kind].is_floating_point


def _list_few(title: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{title}: {', '.join(names[:_SHOWN])}{more}"
