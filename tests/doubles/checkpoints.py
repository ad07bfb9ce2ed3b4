"""Checkpoint folders with random weights, written on the spot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from asyncgen.families.config import ModelConfig
from asyncgen.models.core import make_core

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


def save_checkpoint(
    folder: Path, /, *, shards: int = 1, stored: torch.dtype | None = None, **config: Any
) -> dict[str, torch.Tensor]:
    """Write config and weights of a model; return the tensors by name.

    Args:
        folder: Where to; made if need be.
        shards: Number of files; one is `model.safetensors`, more have an index.
        stored: Dtype of the tensors; that of the config if left out.
        **config: Overrides `CONFIG`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {**CONFIG, **config}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    tensors = random_weights(settings, stored or getattr(torch, settings["dtype"]))
    save_tensors(folder, tensors, shards=shards)
    return tensors


def random_weights(config: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Make every tensor that a model of this config needs."""
    with torch.device("meta"):
        core = make_core(ModelConfig.from_hf(config))
    generator = torch.Generator().manual_seed(0)
    return {
        source: torch.empty(shape).uniform_(-0.2, 0.2, generator=generator).to(dtype)
        for rule in core.weight_map()
        for source, shape in zip(rule.sources, rule.shapes, strict=True)
    }


def save_tensors(folder: Path, tensors: dict[str, torch.Tensor], *, shards: int = 1) -> None:
    """Write tensors as one file, or as several with an index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, name))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
