"""Layers on a pooled vector: the ``Dense`` modules of sentence-transformers.

A folder of such a module has a ``config.json`` with its sizes, and its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch.nn import functional as F

from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.hub import read_json
from asyncgen.errors import ModelLoadError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": _as_it_is,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "Sigmoid": torch.sigmoid,
}
"""Activations by the last part of their names."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """A linear layer with an activation.

    Attributes:
        weight: ``[out, in]``, float32 on the CPU.
        bias: ``[out]``, float32 on the CPU; ``None`` for no bias.
        activate: The activation.
    """

    weight: Tensor
    bias: Tensor | None
    activate: Callable[[Tensor], Tensor]

    @property
    def width(self) -> int:
        """Components of the result."""
        return self.weight.shape[0]

    def __call__(self, vector: Tensor) -> Tensor:
        """Apply the layer to a vector ``[in]``, float32; return ``[out]``."""
        return self.activate(F.linear(vector, self.weight, self.bias))


def plain_layer(weight: Tensor) -> DenseLayer:
    """Make a layer without bias and activation.

    Args:
        weight: ``[out, in]``, float32 on the CPU.
    """
    return DenseLayer(weight, None, _as_it_is)


def read_dense(folder: Path, width: int | None) -> DenseLayer:
    """Read a module.

    Args:
        folder: Folder of the module.
        width: Components of its input; ``None``: as in the file.

    Raises:
        ModelLoadError: A file has a wrong format or does not fit.
    """
    said = read_json(folder / "config.json")
    activation = str(said.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        allowed = f"supported are {', '.join(_ACTIVATIONS)}"
        raise ModelLoadError(
            f"{folder}: `activation_function` is {shorten(said['activation_function'])}: {allowed}"
        )
    stored = open_checkpoint(folder).tensors
    sizes = said.get("in_features"), said.get("out_features")
    shapes: dict[str, tuple[object, ...]] = {"linear.weight": (sizes[1], sizes[0])}
    if said.get("bias", True):
        shapes["linear.bias"] = (sizes[1],)
    found = {name: tensor.shape for name, tensor in stored.items()}
    if found != shapes or (width is not None and sizes[0] != width):
        wanted = f"{sizes[0]} to {sizes[1]} features are wanted, of {width} that come in"
        raise ModelLoadError(f"{folder}: {wanted}, and stored are {shorten(found)}")
    read = {}
    for name, tensor in stored.items():
        with safe_open(tensor.file, "pt") as file:
            read[name] = file.get_tensor(name).float()
    return DenseLayer(read["linear.weight"], read.get("linear.bias"), _ACTIVATIONS[activation])
