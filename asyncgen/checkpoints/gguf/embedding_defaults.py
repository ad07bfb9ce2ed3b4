"""Read the settings of embeddings from a GGUF file: pooling and further layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from asyncgen.checkpoints.embedding_settings import DenseLayer, EmbeddingSettings
from asyncgen.checkpoints.gguf.read_tensors import read_as
from asyncgen.errors import ModelLoadError
from asyncgen.runtime.device_memory import memory_to_load

if TYPE_CHECKING:
    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

LAYERS: Final = ("dense_2.weight", "dense_3.weight")
"""Matrices after the pooling, in their order."""

_WIDEST: Final = 16
"""Most rows of a matrix, in widths of a hidden state; EmbeddingGemma has 4."""
_MEAN: Final = 1
_LAST: Final = (0, 3)
"""Values of ``pooling_type`` for the last token; 0 means none."""


def embedding_settings(model: GgufModel, width: int) -> EmbeddingSettings:
    """Return the settings of a model's embeddings.

    Args:
        model: The file.
        width: Width of its hidden states.

    Raises:
        ModelLoadError: A key is of the wrong type, or a matrix does not fit, also into memory.
    """
    stated = model.own.whole("pooling_type")
    is_known = stated in (None, *_LAST, _MEAN)
    problem = f"the file asks for a `{model.own.prefix}pooling_type` of {stated}"
    return EmbeddingSettings(
        pooling="mean" if stated == _MEAN else "last",
        layers=_layers(model, width),
        unsupported=None if is_known else problem,
    )


def _layers(model: GgufModel, width: int) -> tuple[DenseLayer, ...]:
    found: list[DenseLayer] = []
    most = _WIDEST * width
    for name in LAYERS:
        tensor = model.tensors.get(name)
        if tensor is None:
            continue
        if len(tensor.shape) != 2 or tensor.shape[1] != width:
            shape = list(tensor.shape)
            raise ModelLoadError(f"{model.file}: {name} is {shape}, expected [.., {width}]")
        if tensor.shape[0] > most:
            allowed = f"at most {most} rows are allowed"
            raise ModelLoadError(f"{model.file}: {name} has {tensor.shape[0]} rows, {allowed}")
        need, free = 4 * math.prod(tensor.shape), memory_to_load(torch.device("cpu"))
        if free is not None and need > free:
            raise ModelLoadError(
                f"{model.file}: {name} needs {need / 1e9:.2g} GB of memory, {free / 1e9:.2g} are "
                "free: end what else takes memory"
            )
        found.append(DenseLayer(read_as(tensor, torch.float32)))
        width = tensor.shape[0]
    return tuple(found)
