"""Make files of Gemma 3n, Gemma 4 and EmbeddingGemma as llama.cpp's converter does."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHITECTURES = {"gemma3n_text": "gemma3n", "gemma4_text": "gemma4"}

_KEYS = {
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "altup.num_inputs": "altup_num_inputs",
    "altup.active_idx": "altup_active_idx",
    "expert_used_count": "top_k_experts",
}


def metadata(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that only this family has."""
    if family not in ARCHITECTURES:
        return {}
    found = {theirs: config[ours] for theirs, ours in _KEYS.items() if config.get(ours) is not None}
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    found["attention.sliding_window_pattern"] = slides
    widths = config["intermediate_size"]
    found["feed_forward_length"] = widths[0] if isinstance(widths, list) else widths
    if family == "gemma3n_text":
        found["activation_sparsity_scale"] = [
            NormalDist().inv_cdf(part) if part else -np.inf
            for part in config["activation_sparsity_pattern"]
        ]
        return found
    full = _full(config)
    found |= {
        "attention.key_length": full["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
    }
    layers, shared = len(slides), config["num_kv_shared_layers"]
    if config.get("use_double_wide_mlp"):
        found["feed_forward_length"] = [widths] * (layers - shared) + [2 * widths] * shared
    if "num_key_value_heads" in full:
        heads = full["num_key_value_heads"], config["num_key_value_heads"]
        found["attention.head_count_kv"] = [heads[each] for each in slides]
    return found


def _full(config: Mapping[str, Any]) -> Mapping[str, int]:
    """Heads of the layers that see all: the last is one."""
    found: Mapping[str, int] = config["per_layer_config"][str(len(config["layer_types"]) - 1)]
    return found


def prepared(
    family: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Tensors with the converter's names, those of streams in one."""
    if family not in ARCHITECTURES:
        return dict(tensors)
    made: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        name = key
        if key.endswith(("_scale", "layer_scalar")):
            name = f"{key}.weight"
        if ".experts." in key:
            name = f"{key}.weight"
        if key.endswith("router.scale"):
            name = f"blk.{key.split('.')[2]}.ffn_gate_inp.scale"
        if key.endswith("per_expert_scale"):
            name = f"blk.{key.split('.')[2]}.ffn_down_exps.scale"
        made[name] = tensor
    if family == "gemma3n_text":
        for part in ("altup_projections", "altup_unembed_projections"):
            each = [made.pop(f"model.{part}.{number}.weight") for number in range(3)]
            made[f"model.{part}.weight"] = np.stack(each)
        table = made["model.embed_tokens_per_layer.weight"]
        rows = config["vocab_size"] - len(table)  # those of pictures and sounds
        made["model.embed_tokens_per_layer.weight"] = np.pad(table, ((0, rows), (0, 0)))
    else:
        size = _full(config)["head_dim"]
        part = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
        turned = int(size * part / 2)
        factors = [1.0] * turned + [1e30] * (size // 2 - turned)
        made["rope_freqs.weight"] = np.array(factors, np.float32)
    return made
