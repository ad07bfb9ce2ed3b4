"""Make files of families that share little with others as llama.cpp's converter does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHITECTURES = {
    "afmoe": "afmoe",
    "apertus": "apertus",
    "dbrx": "dbrx",
    "kimi_linear": "kimi-linear",
    "llama4_text": "llama4",
    "mimo_v2_flash": "mimo2",
    "minicpm3": "minicpm3",
    "mpt": "mpt",
}

_KEYS = {
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token"),
    "expert_count": ("num_local_experts", "n_routed_experts", "num_experts"),
    "expert_shared_count": ("num_shared_experts",),
    "expert_weights_scale": ("route_scale", "routed_scaling_factor"),
    "leading_dense_block_count": ("num_dense_layers", "first_k_dense_replace"),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "attention.value_scale": ("attention_value_scale",),
    "context_length": ("max_position_embeddings", "model_max_length", "max_seq_len"),
    "embedding_length": ("hidden_size", "d_model"),
    "block_count": ("num_hidden_layers", "n_layers"),
    "attention.head_count": ("num_attention_heads", "n_heads"),
}
_SLIDES = "sliding_attention"


def metadata(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that only this family has."""
    if family not in ARCHITECTURES:
        return {}
    found: dict[str, Any] = {}
    for theirs, ours in _KEYS.items():
        stated = [config[key] for key in ours if config.get(key) is not None]
        if stated:
            found[theirs] = stated[0]
    more = {
        "afmoe": _afmoe,
        "apertus": lambda config: {},
        "dbrx": _dbrx,
        "kimi_linear": _kimi,
        "llama4_text": _llama4,
        "mimo_v2_flash": _mimo,
        "minicpm3": _minicpm3,
        "mpt": _mpt,
    }
    return found | more[family](config)


def _afmoe(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"expert_gating_func": 2, "expert_weights_norm": True}


def _dbrx(config: Mapping[str, Any]) -> dict[str, Any]:
    feed, attention = config["ffn_config"], config["attn_config"]
    return {
        "feed_forward_length": feed["ffn_hidden_size"],
        "attention.head_count_kv": attention["kv_n_heads"],
        "rope.freq_base": attention["rope_theta"],
        "attention.clamp_kqv": attention["clip_qkv"],
        "expert_count": feed["moe_num_experts"],
        "expert_used_count": feed["moe_top_k"],
        "attention.layer_norm_epsilon": 1e-5,
    }


def _kimi(config: Mapping[str, Any]) -> dict[str, Any]:
    turned = config["qk_rope_head_dim"]
    return {
        "attention.head_count_kv": [
            int(kind == "full_attention") for kind in config["layer_types"]
        ],
        "attention.key_length": config["kv_lora_rank"] + turned,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": turned,
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.head_dim": config["linear_head_dim"],
        "expert_gating_func": 2,
        "leading_dense_block_count": config["mlp_layer_types"].count("dense"),
    }


def _llama4(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


def _mimo(config: Mapping[str, Any]) -> dict[str, Any]:
    slides = [int(kind == _SLIDES) for kind in config["layer_types"]]
    heads = config["num_key_value_heads"]
    own = {
        "attention.head_count_kv": [2 * heads if each else heads for each in slides],
        "attention.sliding_window_pattern": slides,
        "attention.value_length": config["v_head_dim"],
        "rope.dimension_count": int(config["head_dim"] * 0.334),
    }
    return own


def _minicpm3(config: Mapping[str, Any]) -> dict[str, Any]:
    turned = config["qk_rope_head_dim"]
    return {
        "attention.key_length": config["qk_nope_head_dim"] + turned,
        "rope.dimension_count": turned,
    }


def _mpt(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "feed_forward_length": 4 * config["d_model"],
        "attention.layer_norm_epsilon": 1e-5,
        "attention.max_alibi_bias": 8.0,
    }


def whole(family: str, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Metadata with their whole names, where tensors of a checkpoint are such."""
    if family != "apertus":
        return {}
    kinds = ("alpha_p", "alpha_n", "beta", "eps")
    layers = sum(key.endswith(".act_fn.beta") for key in tensors)
    place = "model.layers.{}.mlp.act_fn.{}"
    return {
        f"xielu.{kind}": [tensors[place.format(n, kind)].item() for n in range(layers)]
        for kind in kinds
    }


def prepared(
    family: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Tensors with the converter's names and in the form that it stores."""
    if family not in ARCHITECTURES:
        return dict(tensors)
    made: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        name = key.replace("e_score_correction_bias", "e_score_correction.bias")
        name = name.replace("expert_bias", "expert_bias.bias")
        name = name.replace(".dt_bias", ".dt_proj.bias")
        if family == "kimi_linear" and name.split(".")[-2] in ("gate_proj", "up_proj", "down_proj"):
            name = name.replace("block_sparse_moe.", "mlp.")
        if ".act_fn." in key:
            continue
        if family == "dbrx" and ".experts." in key:
            feed = config["ffn_config"]
            sides = feed["moe_num_experts"], feed["ffn_hidden_size"], config["d_model"]
            split = tensor.reshape(sides)
            made[f"{name}.weight"] = split.swapaxes(1, 2) if key.endswith("w2") else split
        elif key.endswith("experts.gate_up_proj"):
            layer = key.split(".")[2]
            halves = np.split(tensor.swapaxes(1, 2), 2, axis=1)
            for part, half in zip(("gate", "up"), halves, strict=True):
                made[f"blk.{layer}.ffn_{part}_exps.weight"] = half
        elif key.endswith("experts.down_proj"):
            layer = key.split(".")[2]
            made[f"blk.{layer}.ffn_down_exps.weight"] = tensor.swapaxes(1, 2)
        elif key.endswith("A_log"):
            made[name] = -np.exp(tensor)
        elif key.endswith("conv1d.weight"):
            made[name] = tensor.reshape(1, len(tensor), 1, -1)
        elif family == "mimo_v2_flash" and key.endswith("sink_bias"):
            made[f"{key}.weight"] = tensor
        else:
            made[name] = tensor
    return made
