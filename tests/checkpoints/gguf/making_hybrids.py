"""Make files of families with states as llama.cpp's converter does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

ARCHITECTURES = {
    "mamba": "mamba",
    "falcon_mamba": "mamba",
    "mamba2": "mamba2",
    "falcon_h1": "falcon-h1",
    "granitemoehybrid": "granitehybrid",
    "jamba": "jamba",
    "nemotron_h": "nemotron_h",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
LAYERS = 16
"""More than any that says how many it has by a list alone."""
BARE = {
    *((name, tensor) for name in ARCHITECTURES.values() for tensor in ("ssm_a", "ssm_d")),
    ("falcon-h1", "ffn_norm"),
    ("kimi-linear", "ssm_a"),
    *(("nemotron_h_moe", tensor) for tensor in ("ssm_a", "ssm_d")),
}
"""Tensors whose names end without saying what they are."""
_LFM = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}

_STATES = {
    "ssm.conv_kernel": ("conv_kernel", "mamba_d_conv"),
    "ssm.state_size": ("state_size", "ssm_state_size", "mamba_d_state"),
    "ssm.group_count": ("n_groups", "mamba_n_groups"),
    "shortconv.l_cache": ("conv_L_cache",),
    "full_attention_interval": ("full_attention_interval",),
    "leading_dense_block_count": ("num_dense_layers",),
    "expert_shared_feed_forward_length": ("shared_intermediate_size",),
    "embedding_scale": ("embedding_multiplier",),
    "attention.layer_norm_rms_epsilon": (
        "layer_norm_epsilon",
        "norm_eps",
        "rms_norm_eps",
    ),
}


def metadata(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that only this family has."""
    if family not in ARCHITECTURES:
        return {}
    found: dict[str, Any] = {}
    for theirs, ours in _STATES.items():
        stated = [config[key] for key in ours if config.get(key) is not None]
        if stated:
            found[theirs] = stated[0]
    width = config["hidden_size"]
    heads = next(
        (config[k] for k in ("mamba_n_heads", "mamba_num_heads", "num_heads") if k in config), None
    )
    if family in ("mamba", "falcon_mamba", "jamba"):
        rank = config.get("time_step_rank", config.get("mamba_dt_rank"))
        found["ssm.time_step_rank"] = rank
        found["ssm.inner_size"] = config.get("mamba_expand", config.get("expand")) * width
        found["ssm.dt_b_c_rms"] = family != "mamba"
    elif heads is not None:
        size = next(
            config[k] for k in ("mamba_d_head", "mamba_head_dim", "head_dim") if k in config
        )
        found |= {"ssm.time_step_rank": heads, "ssm.inner_size": heads * size}
    if family.startswith("qwen3"):
        found |= _delta(config)
    if family in ("mamba", "falcon_mamba", "mamba2"):
        found |= {
            "attention.head_count": 0,
            "feed_forward_length": 0,
            "context_length": 2**20,
        }
    if family == "granitemoehybrid":
        found["rope.scaling.finetuned"] = config["position_embedding_type"] == "rope"
        if not config["num_local_experts"]:
            found["feed_forward_length"] = config["shared_intermediate_size"]
    if family == "jamba":
        found["context_length"] = 2**18
    kinds = _kinds(family, config)
    if kinds:
        keys = config["num_key_value_heads"]
        found["attention.head_count_kv"] = [
            keys if kind in ("attention", "full_attention") else 0 for kind in kinds
        ]
        found["block_count"] = len(kinds)
    if family == "nemotron_h" and "moe" in kinds:
        found |= _experts(config, kinds)
    elif family == "nemotron_h":
        found["feed_forward_length"] = [
            config["intermediate_size"] if kind == "mlp" else 0 for kind in kinds
        ]
    if family == "lfm2_moe":
        found["expert_gating_func"] = 2
    return found


def name_of(family: str, config: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of a family; one of them has another name with experts."""
    has_experts = family == "nemotron_h" and "moe" in config["layers_block_type"]
    return "nemotron_h_moe" if has_experts else ARCHITECTURES[family]


def _experts(config: Mapping[str, Any], kinds: list[str]) -> dict[str, Any]:
    """Of Nemotron 3."""
    width = config["moe_intermediate_size"]
    found = {
        "feed_forward_length": [width if kind == "moe" else 0 for kind in kinds],
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": 2,
    }
    if config["moe_latent_size"]:
        found["moe_latent_size"] = config["moe_latent_size"]
    return found


def _kinds(family: str, config: Mapping[str, Any]) -> list[str]:
    if family == "jamba":
        period, offset = config["attn_layer_period"], config["attn_layer_offset"]
        layers = range(config["num_hidden_layers"])
        return ["attention" if n % period == offset else "mamba" for n in layers]
    if family not in ("granitemoehybrid", "nemotron_h", "lfm2", "lfm2_moe"):
        return []
    kinds: list[str] = config.get("layers_block_type") or config["layer_types"]
    return kinds


def prepared(
    family: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Tensors with the converter's names and factors, in the form that it stores."""
    if family not in ARCHITECTURES:
        return dict(tensors)
    if family == "falcon_h1":
        tensors = _with_factors(config, tensors)
    if family.startswith("qwen3"):
        tensors = _delta_rows(family, config, tensors)
    made: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        name = key.replace(".dt_bias", ".dt_proj.bias").replace("expert_bias", "expert_bias.bias")
        if family == "lfm2_moe" and ".experts." in name:
            stem, part, end = name.rsplit(".", 2)
            name = f"{stem.replace('feed_forward', 'mlp')}.{_LFM[part]}.{end}"
        if key.endswith("A_log"):
            tensor = -np.exp(tensor)
        if key.endswith(("conv1d.weight", "conv.conv.weight")):
            tensor = tensor.squeeze(1)
        if family.startswith("qwen3") and key.endswith("norm.weight"):
            tensor = tensor + np.float32("linear_attn" not in key)
        elif family not in ("mamba", "falcon_mamba", "jamba") and "linear_attn" not in key:
            if key.endswith(("A_log", ".D")):
                tensor = tensor.reshape(-1, 1)
            if re.search(r"(mixer|mamba)\.norm\.weight$", key):
                groups = config.get("n_groups", config.get("mamba_n_groups"))
                tensor = tensor.reshape(groups, -1)
        if family == "nemotron_h" and ".experts." in name:
            name = name.replace("backbone", "model").replace("mixer", "mlp")
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if family == "granitemoehybrid":
            made |= _granite(config, name, tensor)
        else:
            made[name] = tensor
    return made


def _delta(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size", 0),
        "rope.dimension_sections": [1, 0, 0, 0],
    }


def _delta_rows(
    family: str, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Qwen3-Next's joined matrix apart; of Qwen 3.5 values' heads by their place in a group."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    keys, values = config["linear_key_head_dim"], config["linear_value_head_dim"]
    shared = 2 * groups * keys

    def turned(rows: np.ndarray) -> np.ndarray:
        split = rows.reshape(groups, heads // groups, -1, *rows.shape[1:])
        return split.swapaxes(0, 1).reshape(rows.shape)

    made: dict[str, np.ndarray] = {}
    for key, tensor in tensors.items():
        if key.endswith("in_proj_qkvz.weight"):
            each = tensor.reshape(groups, -1, tensor.shape[1])
            cuts = np.cumsum([keys, keys, heads // groups * values])
            parts = [part.reshape(-1, tensor.shape[1]) for part in np.split(each, cuts, axis=1)]
            made[key.replace("qkvz", "qkv")] = np.concatenate(parts[:3])
            made[key.replace("qkvz", "z")] = parts[3]
        elif family == "qwen3_next" or "linear_attn" not in key:
            made[key] = tensor
        elif "in_proj_qkv" in key or "conv1d" in key:
            made[key] = np.concatenate([tensor[:shared], turned(tensor[shared:])])
        elif "out_proj" in key:
            made[key] = np.ascontiguousarray(turned(tensor.T).T)
        else:
            made[key] = tensor if key.endswith("norm.weight") else turned(tensor)
    return made


def _granite(config: Mapping[str, Any], name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Gates apart from what they let through; without experts the shared part is all."""
    if not name.endswith(("input_linear.weight", "output_linear.weight")):
        return {name: tensor}
    layer = re.match(r"model\.layers\.\d+\.", name)
    assert layer is not None
    is_shared = "shared_mlp" in name
    part = "mlp.shared_expert" if is_shared else "mlp.experts"
    if not config["num_local_experts"]:
        part = "mlp"
    stem = f"{layer[0]}{part}"
    if "output_linear" in name:
        return {f"{stem}.down_proj.weight": tensor}
    gate, up = np.split(tensor, 2, axis=-2)
    return {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}


def _with_factors(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Falcon H1's weights times the factors of what they make."""
    inner = config["mamba_n_heads"] * config["mamba_d_head"]
    shared = config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = (inner, inner, shared, shared, config["mamba_n_heads"])
    rows = np.repeat(np.float32(config["ssm_multipliers"]), sizes) * config["ssm_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    attention = config["attention_in_multiplier"]
    factors = {
        "embed_tokens.weight": config["embedding_multiplier"],
        "lm_head.weight": config["lm_head_multiplier"],
        "q_proj.weight": attention,
        "k_proj.weight": attention * config["key_multiplier"],
        "v_proj.weight": attention,
        "o_proj.weight": config["attention_out_multiplier"],
        "in_proj.weight": rows[:, None],
        "out_proj.weight": config["ssm_out_multiplier"],
        "gate_proj.weight": gate,
        "down_proj.weight": down,
    }
    made = dict(tensors)
    for key, tensor in tensors.items():
        for end, factor in factors.items():
            if key.endswith(f".{end}") or key == end:
                made[key] = (tensor * factor).astype(np.float32)
    return made
