"""Make files of families with corrected or sparse experts as llama.cpp's converter does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

ARCHITECTURES = {
    "glm4_moe": "glm4moe",
    "solar_open": "glm4moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone_moe": "exaone-moe",
    "hunyuan_v1_moe": "hunyuan-moe",
    "minimax_m2": "minimax-m2",
    "phimoe": "phimoe",
}
_KEYS = {
    "expert_count": (
        "moe_num_experts",
        "num_local_experts",
        "n_routed_experts",
        "num_experts",
    ),
    "expert_used_count": ("moe_k", "moe_topk", "num_experts_per_tok"),
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_count": (
        "num_shared_experts",
        "n_shared_experts",
        "moe_num_shared_experts",
    ),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "leading_dense_block_count": (
        "first_k_dense_replace",
        "moe_layer_start_index",
    ),
    "interleave_moe_layer_step": ("moe_layer_interval",),
}


def metadata(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that only this family has."""
    if family not in ARCHITECTURES:
        return {}
    found: dict[str, Any] = {}
    for theirs, ours in _KEYS.items():
        stated = [config[key] for key in ours if config.get(key) is not None]
        if stated:
            found[theirs] = stated[0]
    if "expert_weights_scale" in found:
        found["expert_weights_scale"] = float(found["expert_weights_scale"])
    width = found["expert_feed_forward_length"]
    if "expert_shared_count" in found:
        found["expert_shared_feed_forward_length"] = width * found["expert_shared_count"]
    if family == "hunyuan_v1_moe":
        found |= {"expert_shared_feed_forward_length": width, "expert_shared_count": 1}
    if family in ("exaone_moe", "glm4_moe", "minimax_m2", "solar_open"):
        found["expert_gating_func"] = 2
    if family == "phimoe":
        found["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    return found


def prepared(family: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with the converter's names: corrections are of one side, and are biases."""
    if family not in ARCHITECTURES:
        return dict(tensors)
    made: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        if key.endswith("e_score_correction_bias"):
            made[key.replace("correction_bias", "correction.bias")] = tensor.reshape(-1)
        else:
            made[key] = tensor
    return made
