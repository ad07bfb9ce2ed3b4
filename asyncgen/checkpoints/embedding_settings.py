"""Read the settings of embeddings from the files of sentence-transformers.

``modules.json`` lists the modules, ``1_Pooling/config.json`` has the pooling of hidden states,
folders of dense layers follow it, and ``config_sentence_transformers.json`` has the prompts before
a text. Without these files, a model is pooled at its last token, and its vectors are normalised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.hub import read_any_json, read_json
from asyncgen.checkpoints.packed.raw_tensors import read_raw
from asyncgen.checkpoints.stored_files import is_stored
from asyncgen.errors import InvalidRequestError, ModelLoadError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from asyncgen.types import Pooling

_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "lasttoken": "last",
    "mean": "mean",
}
"""Our poolings by their names in old and new files."""

_FOLDER = re.compile(r"[A-Za-z0-9_-][\w.-]*")

_MOST_MODULES = 32
_MOST_BYTES = 256 * 1024 * 1024
"""Modules of a model, and bytes of a dense layer; those of real ones are 5 and 16 MB."""


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
    bias: Tensor | None = None
    activate: Callable[[Tensor], Tensor] = _as_it_is

    @property
    def width(self) -> int:
        """Components of the result."""
        return self.weight.shape[0]

    def __call__(self, vector: Tensor) -> Tensor:
        """Apply the layer to a vector ``[in]``, float32; return ``[out]``."""
        return self.activate(F.linear(vector, self.weight, self.bias))


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """Defaults of a model's embeddings.

    Attributes:
        pooling: Hidden states that make the vector.
        normalize: Divide the vector by its length.
        prompts: Texts before a text, by name.
        default_prompt_name: Name of the default prompt; ``None`` for none.
        pools_prompts: Tokens of the prompt count in the mean.
        sizes: Numbers of components that a vector may be cut to; ``None``: any number. Empty if
            the model was not trained for it.
        layers: Layers on the vector, before it is cut or divided.
        unsupported: Description of a setting that is not supported; ``None`` for none.
    """

    pooling: Pooling = "last"
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    pools_prompts: bool = True
    sizes: tuple[int, ...] | None = ()
    layers: tuple[DenseLayer, ...] = ()
    unsupported: str | None = None

    def check_dimensions(self, dimensions: int | None, width: int) -> None:
        """Refuse a number of components for which the model was not trained.

        Args:
            dimensions: Requested number; ``None`` for all.
            width: Components of a whole vector.

        Raises:
            InvalidRequestError: The number is not allowed; lists the allowed ones.
        """
        if dimensions is None or dimensions == width:
            return
        if self.sizes == ():
            allowed = (
                f"the model was not trained to have its vectors cut (`is_matryoshka` in its "
                f"config.json would say so); they have {width} components"
            )
            raise InvalidRequestError("dimensions", dimensions, allowed)
        if self.sizes is not None and dimensions not in self.sizes:
            listed = ", ".join(map(str, self.sizes))
            raise InvalidRequestError("dimensions", dimensions, f"one of {listed}, or {width}")
        if not 1 <= dimensions <= width:
            raise InvalidRequestError("dimensions", dimensions, f"from 1 to {width}")


def read_embedding_settings(
    folder: Path, config: Mapping[str, Any], width: int | None = None
) -> EmbeddingSettings:
    """Read the settings of embeddings of a checkpoint; all files may be absent.

    Args:
        folder: Folder of the checkpoint.
        config: Content of its ``config.json``.
        width: Width of its hidden states; ``None``: unknown.

    Raises:
        ModelLoadError: A file has a wrong format.
    """
    found: dict[str, Any] = {"sizes": _sizes(config)}
    file = folder / "config_sentence_transformers.json"
    if is_stored(file):
        found |= _prompts(file)
    file = folder / "modules.json"
    if is_stored(file):
        found |= _modules(file, width)
    return EmbeddingSettings(**found)


def _sizes(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the sizes that vectors may be cut to, by the keys of vLLM."""
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list) and all(type(each) is int for each in listed):
        return tuple(listed)
    return None if config.get("is_matryoshka") is True else ()


def _prompts(file: Path) -> dict[str, Any]:
    said = read_json(file)
    prompts, name = said.get("prompts") or {}, said.get("default_prompt_name")
    is_table = isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())
    if not is_table or not (name is None or name in prompts):
        raise ModelLoadError(f"{file}: `prompts` are texts by name, and the default is one of them")
    return {"prompts": prompts, "default_prompt_name": name}


def _modules(file: Path, width: int | None) -> dict[str, Any]:
    """Read the settings of the modules after the transformer."""
    modules = read_any_json(file)
    try:
        kinds = [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in modules]
    except (TypeError, LookupError) as error:
        raise ModelLoadError(f"{file} is no list of modules ({error!r})") from error
    if len(kinds) > _MOST_MODULES:
        raise ModelLoadError(f"{file} lists {len(kinds)} modules; at most {_MOST_MODULES} are read")
    found: dict[str, Any] = {"normalize": False}
    layers: tuple[DenseLayer, ...] = ()
    for kind, path in kinds:
        if kind == "Pooling" and _FOLDER.fullmatch(path):
            found |= _pooling(file.parent / path / "config.json")
        elif kind == "Dense" and "pooling" in found and not found["normalize"]:
            if not _FOLDER.fullmatch(path):
                raise ModelLoadError(f"{file}: {shorten(path)} is no folder beside it")
            layers += (read_dense(file.parent / path, layers[-1].width if layers else width),)
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind != "Transformer":
            found["unsupported"] = f"modules.json asks for a module {kind!r}"
    return {**found, "layers": layers}


def _pooling(file: Path) -> dict[str, Any]:
    """Read the mode of a pooling module."""
    said = read_json(file)
    named = said.get("pooling_mode")
    modes = [named] if isinstance(named, str) else [name for name in said if said[name] is True]
    modes = [mode for mode in modes if mode != "include_prompt"]
    pools_prompts = said.get("include_prompt", True) is not False
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        asked = " and ".join(modes) or "no pooling"
        return {"unsupported": f"{file.parent.name}/config.json asks for {asked}"}
    return {"pooling": _POOLINGS[modes[0]], "pools_prompts": pools_prompts}


def read_dense(folder: Path, width: int | None) -> DenseLayer:
    """Read a ``Dense`` module.

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
    size = sum(tensor.num_bytes for tensor in stored.values())
    if size > _MOST_BYTES:
        raise ModelLoadError(
            f"{folder} has {size} bytes of weights; at most {_MOST_BYTES} are read"
        )
    read = {name: read_raw(tensor).float() for name, tensor in stored.items()}
    return DenseLayer(read["linear.weight"], read.get("linear.bias"), _ACTIVATIONS[activation])
