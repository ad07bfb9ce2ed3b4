"""Write the weights of a model as a checkpoint: the inverse of `weight_loading`.

Tensors are written one at a time, each in the shape and under the name of its family's files, so
nothing large exists twice. Tied weights are written once. Knows no architecture; the model's
``weight_map`` does.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import torch

from asyncgen.checkpoints.checkpoint import DTYPES, INDEX, SINGLE
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from asyncgen.checkpoints.saved_folder import SavedFolder
    from asyncgen.models.decoder import DecoderLM
    from asyncgen.models.weight_map import WeightRule


_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SHARD = re.compile(r"model-([0-9a-f]{8}-)?\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]
    rule: WeightRule
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def save_weights(model: DecoderLM, folder: SavedFolder, max_shard_size: int | str) -> None:
    """Write every weight, in one file or in several with an index.

    Weights that were saved in the folder before are replaced. Files of an index that is there
    already are not written over: until the new index is in place, the old one has its own.

    Args:
        model: The model.
        folder: Where to.
        max_shard_size: Most bytes of a file: a number, or a text such as ``"5GB"`` or ``"200MiB"``.
            A larger tensor has a file of its own.

    Raises:
        InvalidRequestError: ``max_shard_size`` is neither.
        OSError: The folder cannot be written to.
    """
    pieces = [
        _Piece(name, shape, rule, _dtype(model, rule.target))
        for rule in model.weight_map()
        for name, shape in zip(rule.sources, rule.shapes, strict=True)
    ]
    shards = _shards(pieces, shard_bytes(max_shard_size))
    there = folder.names()
    names = [SINGLE] if len(shards) == 1 else _shard_names(len(shards), there)
    for name, shard in zip(names, shards, strict=True):
        with folder.open(name) as stream:
            _write_shard(stream, model, shard)
    if len(shards) > 1:
        folder.add(INDEX, _index(names, shards))
    for name in there:
        # Weights that were saved here before would be loaded instead.
        if name in (SINGLE, INDEX) or _SHARD.fullmatch(name):
            folder.drop(name)


def _shard_names(count: int, there: Sequence[str]) -> list[str]:
    """Return names of files that are not there."""
    mark = ""
    while True:
        names = [f"model-{mark}{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        if not {*names} & {*there}:
            return names
        mark = f"{secrets.token_hex(4)}-"


def shard_bytes(size: int | str) -> int:
    """Parse a size in bytes.

    Args:
        size: A number of bytes, or a text such as ``"5GB"`` (powers of 1,000) or ``"200MiB"``
            (powers of 1,024).

    Raises:
        InvalidRequestError: The value is neither, or less than 1.
    """
    count: Any = size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is not None:
        number, power, binary = found.groups()
        count = int(float(number) * (1024 if binary else 1000) ** _POWERS[power])
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        allowed = 'a number of bytes, or a text such as "5GB" or "200MiB"'
        raise InvalidRequestError("max_shard_size", size, allowed)
    return count


def _shards(pieces: Sequence[_Piece], most: int) -> list[list[_Piece]]:
    """Distribute pieces over files, in order, as many in a file as fit."""
    shards: list[list[_Piece]] = [[]]
    room = most
    for piece in pieces:
        if piece.num_bytes > room and shards[-1]:
            shards.append([])
            room = most
        shards[-1].append(piece)
        room -= piece.num_bytes
    return shards


def write_tensors(stream: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of the processor as a file of safetensors.

    Args:
        stream: What `SavedFolder.open` returned.
        tensors: By name. Those of wide numbers come first, so that each lies at a multiple of its
            width.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    _write_header(stream, [(name, tensors[name].dtype, tensors[name].shape) for name in order])
    for name in order:
        _write(stream, tensors[name].contiguous())


def _write_shard(stream: BinaryIO, model: DecoderLM, shard: Sequence[_Piece]) -> None:
    _write_header(stream, [(piece.name, piece.dtype, piece.shape) for piece in shard])
    for tensor in _tensors(model, shard):
        _write(stream, tensor)


def _write_header(
    stream: BinaryIO, tensors: Sequence[tuple[str, torch.dtype, Sequence[int]]]
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _KINDS[dtype],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensors begin at a multiple of 8
    stream.write(len(text).to_bytes(8, "little") + text)


def _tensors(model: DecoderLM, shard: Sequence[_Piece]) -> Iterator[Tensor]:
    """Each piece of a file, as it is stored; pieces of one parameter lie together."""
    rule: WeightRule | None = None
    parts: dict[str, Tensor] = {}
    for piece in shard:
        if piece.rule is not rule:
            rule, parts = piece.rule, {}
            whole = _parameter(model, rule.target)
            if rule.order is not None:
                back = torch.argsort(
                    torch.tensor(rule.order, dtype=torch.int64, device=whole.device)
                )
                whole = whole.reshape(len(back), -1)[back].view_as(whole)
            first, across = rule.shapes[0], rule.transposed
            if len(rule.sources) == 1:  # such a tensor may hold several matrices
                if rule.matrices > 1:
                    first = (rule.matrices, first[0] // rule.matrices, first[1])
                whole = (
                    whole.reshape(*first[:-2], first[-1], first[-2])
                    if across
                    else whole.reshape(first)
                )
            pieces: Sequence[Tensor] = (whole,)
            if len(rule.sources) > 1:
                rows = [shape[-1] if across else shape[0] for shape in rule.shapes]
                pieces = torch.split(whole, rows)
            parts = dict(zip(rule.sources, pieces, strict=True))
            del pieces
            del whole
        part = parts.pop(piece.name)
        part = (part.mT if piece.rule.transposed else part).to("cpu", piece.dtype)
        yield part.contiguous().view(piece.shape)


def _dtype(model: DecoderLM, target: str) -> torch.dtype:
    """Return the dtype of a saved parameter: the model's, unless its module has another."""
    module = model.get_submodule(target.rpartition(".")[0])
    kind: torch.dtype = getattr(module, "saved_dtype", model.dtype)
    return kind


def _parameter(model: DecoderLM, target: str) -> Tensor:
    """A parameter in the ordinary layout."""
    owner, _, name = target.rpartition(".")
    module: Any = model.get_submodule(owner)
    found = getattr(module, name)
    is_elsewhere = found is None or found.numel() == 0  # laid out, or packed
    tensor: Tensor = module.dense_weight() if is_elsewhere else found
    return tensor.detach()


def _write(stream: BinaryIO, tensor: Tensor) -> None:
    # Not `Tensor.numpy`: it lacks bfloat16, and numpy is not a dependency.
    size = tensor.numel() * tensor.element_size()
    stream.write(memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B"))


def _index(names: Sequence[str], shards: Sequence[Sequence[_Piece]]) -> str:
    places = {
        piece.name: name for name, shard in zip(names, shards, strict=True) for piece in shard
    }
    total = sum(piece.num_bytes for shard in shards for piece in shard)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    return json.dumps(index, indent=2) + "\n"
