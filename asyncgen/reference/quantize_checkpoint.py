"""Write a checkpoint with packed weights, which this library and others can load.

The files are compressed-tensors': integers with a scale for each 32 inputs, and in 4 bits a zero
point. Embeddings, the head, routers, and experts in one tensor stay as they are stored.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.functional import pad

from asyncgen.checkpoints.checkpoint import INDEX, SINGLE, open_checkpoint
from asyncgen.checkpoints.hub import checked_folder, resolve
from asyncgen.checkpoints.packed.quantise import GROUP, PACKINGS, quantise
from asyncgen.checkpoints.packed.raw_tensors import nibbles, read_raw
from asyncgen.checkpoints.saved_folder import SavedFolder, plain_name
from asyncgen.checkpoints.saving import write_tensors
from asyncgen.checkpoints.stored_files import names_in, read_stored
from asyncgen.errors import InvalidRequestError, ModelLoadError, shorten
from asyncgen.reference.model_loader import read_plan
from asyncgen.runtime.progress import Progress
from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from asyncgen.checkpoints.checkpoint import StoredTensor
    from asyncgen.checkpoints.packed.quantise import Packing
    from asyncgen.models.kernels.packed_weight import PackedWeight
    from asyncgen.runtime.progress import ProgressOption

_OTHERS: Final = (".json", ".model", ".txt", ".jinja", ".md")
"""Suffixes of files that are copied beside the weights, except those of the weights."""
_MOST_OTHERS: Final = 1000
_MOST_BYTES: Final = 256 * 1024 * 1024
"""Files that are copied, and bytes of all of them: tokenizers have 60 MB."""


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """Sizes and errors of packing a checkpoint.

    Attributes:
        matrices: Number of packed matrices.
        bytes_before: Bytes of all weights before.
        bytes_after: Bytes of all weights after.
        largest_error: Largest error of a weight.
        mean_error: Mean absolute error.
        relative_error: Root mean square of errors, divided by that of weights.
    """

    matrices: int
    bytes_before: int
    bytes_after: int
    largest_error: float
    mean_error: float
    relative_error: float


def quantize_checkpoint(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    to: Packing = "int4",
    progress: ProgressOption = None,
    **address: Any,
) -> QuantizationReport:
    """Pack the matrices of a checkpoint into a new folder.

    Args:
        source: ``"demo"``, a folder, or the id of a repository on the hub.
        folder: Target folder; it is created, and must be empty.
        to: ``"int8"`` or ``"int4"``.
        progress: As in :func:`asyncgen.load_model`.
        **address: ``revision``, ``token``, ``cache_dir``, ``local_files_only``, ``subfolder``,
            ``follow_links``.

    Raises:
        InvalidRequestError: ``to`` is neither, or the folder is none or not empty.
        ModelLoadError: The checkpoint cannot be read, is packed already, or stores its matrices in
            a way that cannot be packed.
        UnsupportedModelError: Its ``model_type`` has no implementation.
    """
    if to not in PACKINGS:
        raise InvalidRequestError("to", to, "use 'int8' or 'int4'")
    target = checked_folder(folder, "folder")
    _check_empty(target, target.is_dir() and any(target.iterdir()))
    place = resolve(source, progress=progress, **address)
    raw, matrices = read_plan(place)
    checkpoint = open_checkpoint(place)
    names = {name for name in matrices if name in checkpoint.tensors}
    if not names:
        raise ModelLoadError(f"{place} has no matrices that can be packed")
    shards = _by_file(checkpoint.tensors)
    others = _others(place, {stored.file for stored in checkpoint.tensors.values()})
    _check_names(place, shards, others)
    sums = _Sums()
    total = sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
    with SavedFolder(target, parameter="folder") as saved:
        _check_empty(target, bool(saved.names()))  # another save may have been there first
        places: dict[str, str] = {}
        with Progress(total, "packing weights", progress=progress) as bar:
            for file, tensors in shards.items():
                written: dict[str, Tensor] = {}
                for name, stored in tensors.items():
                    tensor = read_raw(stored)
                    bar.advance(stored.num_bytes)
                    if name in names:
                        written |= _packed(name, tensor, to, sums)
                    else:
                        written[name] = tensor
                with saved.open(file) as stream:
                    write_tensors(stream, written)
                sums.bytes_after += sum(tensor.nbytes for tensor in written.values())
                places |= dict.fromkeys(written, file)
        for name, content in others.items():
            saved.add(name, content)
        kept = {
            name.removesuffix(".weight")
            for name, stored in checkpoint.tensors.items()
            if name not in names and len(stored.shape) == 2 and name.endswith(".weight")
        }
        kept.add("lm_head")  # a tied head has no tensor, but is a layer for other libraries
        settings = {"quantization_config": _settings(to, sorted(kept))}
        saved.add("config.json", json.dumps({**raw, **settings}, indent=2) + "\n")
        if set(places.values()) != {SINGLE}:
            index = {"metadata": {"total_size": sums.bytes_after}, "weight_map": places}
            saved.add(INDEX, json.dumps(index, indent=2) + "\n")
    return QuantizationReport(
        len(names),
        total,
        sums.bytes_after,
        sums.largest,
        sums.errors / sums.count,
        math.sqrt(sums.squares / sums.weights),
    )


def _check_empty(target: Path, is_full: bool) -> None:
    if is_full:
        raise InvalidRequestError("folder", str(target), "it holds something: give a new one")


def _others(place: Path, shards: Collection[Path]) -> dict[str, bytes]:
    """Read the files that are copied, before anything is written."""
    files = [place / name for name in names_in(place) if name not in ("config.json", INDEX)]
    found: dict[str, bytes] = {}
    size = 0
    for file in files:
        if file.suffix not in _OTHERS or file in shards or file.is_dir():
            continue
        found[file.name] = read_stored(file)
        size += len(found[file.name])
        if len(found) > _MOST_OTHERS or size > _MOST_BYTES:
            raise ModelLoadError(
                f"{place} has too much beside its weights: at most {_MOST_OTHERS} files of "
                f"{_MOST_BYTES} bytes together are copied"
            )
    return found


def _check_names(place: Path, shards: Collection[str], others: Collection[str]) -> None:
    """Refuse names of files that cannot be written, or that are those of several."""
    for name in (*shards, *others):
        try:
            plain_name("source", name)
        except InvalidRequestError as error:
            raise ModelLoadError(f"{place}: the name of a file, {error.args[0]}") from error
    twice = next((name for name in shards if name in {*others, "config.json", INDEX}), None)
    if twice is not None:
        raise ModelLoadError(
            f"{place} has weights in a file called {shorten(twice)}, and another file of that "
            "name; rename that of the weights, in the index as well"
        )


class _Sums:
    """Sums of errors."""

    def __init__(self) -> None:
        self.bytes_after = self.count = 0
        self.largest = self.errors = self.squares = self.weights = 0.0

    def add(self, weight: Tensor, packed: PackedWeight) -> None:
        wide = weight.double()
        error = (packed.dequantise().double() - wide).abs()
        self.count += weight.numel()
        self.largest = max(self.largest, float(error.max()))
        self.errors += float(error.sum())
        self.squares += float(error.square().sum())
        self.weights += float(wide.square().sum())


def _packed(name: str, tensor: Tensor, to: Packing, sums: _Sums) -> dict[str, Tensor]:
    """Return the tensors that replace a matrix."""
    try:
        packed = quantise(tensor, to, scale_dtype=tensor.dtype)
    except ValueError as error:
        raise ModelLoadError(f"`{name}`: {error}") from error
    sums.add(tensor, packed)
    stem = name.removesuffix(".weight")
    bits = 8 if to == "int8" else 4
    words = -(-packed.inputs * bits // 32)
    numbers = packed.codes.view(torch.uint8) ^ (0x80 if to == "int8" else 0)  # without a sign
    written = {
        f"{stem}.weight_packed": numbers[:, : 4 * words].contiguous().view(torch.int32),
        f"{stem}.weight_shape": host_ints([packed.outputs, packed.inputs]),
        f"{stem}.weight_scale": packed.scales,
    }
    if packed.zeros is not None:
        zeros = pad(packed.zeros.view(torch.uint8), (0, 0, 0, -packed.outputs % 8))
        words_of_all = nibbles(zeros.mT.contiguous()).flatten().view(torch.int32)
        columns = words_of_all.view(zeros.shape[1], -1)
        written[f"{stem}.weight_zero_point"] = columns.mT.contiguous()
    return written


def _settings(to: Packing, kept: Sequence[str]) -> dict[str, Any]:
    bits = 8 if to == "int8" else 4
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": to == "int8",
        "strategy": "group",
        "group_size": GROUP,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(kept),
    }


def _by_file(tensors: Mapping[str, StoredTensor]) -> dict[str, dict[str, StoredTensor]]:
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, stored in tensors.items():
        found.setdefault(stored.file.name, {})[name] = stored
    return found
