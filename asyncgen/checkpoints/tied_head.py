"""Find out from the stored tensors whether a model's head is its embedding table.

``tie_word_embeddings`` of a ``config.json`` says what was meant. A file may hold the shared matrix
under either name, a copy of it under the other one, or a head that was trained on its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from asyncgen.checkpoints.checkpoint import DTYPES, is_floating
from asyncgen.checkpoints.tensor_reader import TensorReader
from asyncgen.runtime.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen.checkpoints.checkpoint import Checkpoint, StoredTensor

_BLOCK = 1 << 24
"""Numbers that are compared at once."""


def with_table(checkpoint: Checkpoint, table: str, head: str) -> Checkpoint:
    """Give the table of a tied head its name if the file holds it as the head alone.

    Args:
        checkpoint: The stored tensors.
        table: Stored name of the embedding table.
        head: Stored name of the head.
    """
    tensors = checkpoint.tensors
    if table in tensors or head not in tensors:
        return checkpoint
    return replace(checkpoint, tensors={**tensors, table: tensors[head]})


def has_own_head(checkpoint: Checkpoint, table: str, head: str) -> bool:
    """Tell whether a file stores a head with other numbers than its embedding table.

    Reads both tensors, block by block until they differ, unless they are one.

    Args:
        checkpoint: The stored tensors.
        table: Stored name of the embedding table.
        head: Stored name of the head.
    """
    first, second = (checkpoint.tensors.get(name) for name in (table, head))
    if first is None or second is None or first == second:
        return False
    if first.shape != second.shape:
        return True
    with Progress(0, "comparing the head", progress=False) as bar, TensorReader(bar) as reader:
        return any(not torch.equal(*pair) for pair in _blocks(reader, first, second))


def _blocks(
    reader: TensorReader, first: StoredTensor, second: StoredTensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Read two tensors of one shape block by block, or as a whole if one of them is packed."""
    if not (_is_plain(first) and _is_plain(second)):
        yield reader.join([first], torch.float32), reader.join([second], torch.float32)
        return
    kind = torch.promote_types(DTYPES[first.kind], DTYPES[second.kind])
    total = math.prod(first.shape)
    for start in range(0, total, _BLOCK):
        count = min(_BLOCK, total - start)
        yield (
            reader.join([_cut(first, start, count)], kind),
            reader.join([_cut(second, start, count)], kind),
        )


def _cut(tensor: StoredTensor, start: int, count: int) -> StoredTensor:
    """Locate ``count`` numbers of a tensor from ``start`` on."""
    size = DTYPES[tensor.kind].itemsize
    offset = tensor.offset + start * size
    return replace(tensor, shape=(count,), offset=offset, num_bytes=count * size)


def _is_plain(tensor: StoredTensor) -> bool:
    forms = (tensor.scales, tensor.made, tensor.packed, tensor.unpacked)
    return is_floating(tensor.kind) and all(form is None for form in forms)
