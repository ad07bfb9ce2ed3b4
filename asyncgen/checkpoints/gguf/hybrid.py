"""Declare llama.cpp's architectures with state layers, alone or beside attention layers.

A layer without attention has 0 key heads in an array by layer. Imports no torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.declaration import (
    CHOSEN,
    EXPERTS,
    SIGMOID,
    Architecture,
    Place,
    layers_of,
)
from asyncgen.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

_KV: Final = "attention.head_count_kv"
_FEED: Final = "feed_forward_length"

_MAMBA: Final[Mapping[str, Place]] = {
    "ssm_in.weight": Place("mixer.in_proj.weight"),
    "ssm_in.bias": Place("mixer.in_proj.bias"),
    "ssm_conv1d.weight": Place("mixer.conv1d.weight", "window"),
    "ssm_conv1d.bias": Place("mixer.conv1d.bias"),
    "ssm_a": Place("mixer.A_log", "decay"),
    "ssm_d": Place("mixer.D", "flat"),
    "ssm_out.weight": Place("mixer.out_proj.weight"),
    "ssm_out.bias": Place("mixer.out_proj.bias"),
}
_SELECTIVE: Final[Mapping[str, Place]] = {
    **_MAMBA,
    "ssm_x.weight": Place("mixer.x_proj.weight"),
    "ssm_dt.weight": Place("mixer.dt_proj.weight"),
    "ssm_dt.bias": Place("mixer.dt_proj.bias"),
    "ssm_dt_norm.weight": Place("mixer.dt_layernorm.weight"),
    "ssm_b_norm.weight": Place("mixer.b_layernorm.weight"),
    "ssm_c_norm.weight": Place("mixer.c_layernorm.weight"),
}
_DUAL: Final[Mapping[str, Place]] = {
    **_MAMBA,
    "ssm_dt.bias": Place("mixer.dt_bias"),
    "ssm_norm.weight": Place("mixer.norm.weight", "flat"),
}
_SHORT: Final[Mapping[str, Place]] = {
    "shortconv.in_proj.weight": Place("mixer.in_proj.weight"),
    "shortconv.in_proj.bias": Place("mixer.in_proj.bias"),
    "shortconv.conv.weight": Place("mixer.conv.weight", "window"),
    "shortconv.conv.bias": Place("mixer.conv.bias"),
    "shortconv.out_proj.weight": Place("mixer.out_proj.weight"),
    "shortconv.out_proj.bias": Place("mixer.out_proj.bias"),
}

_SSM: Final = {"ssm.conv_kernel": "conv_kernel", "ssm.state_size": "state_size"}
_GROUPS: Final = {**_SSM, "ssm.group_count": "n_groups"}
_SSM_FLAGS: Final = {
    "use_bias": "blk.*.ssm_in.bias",
    "use_conv_bias": "blk.*.ssm_conv1d.bias",
}
_LINEAR: Final = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_SHARED: Final = {
    **EXPERTS,
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_FALCON_FACTORS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        (
            "attention_in_multiplier",
            "attention_out_multiplier",
            "embedding_multiplier",
            "key_multiplier",
            "lm_head_multiplier",
            "ssm_in_multiplier",
            "ssm_out_multiplier",
        ),
        1.0,
    ),
    "mlp_multipliers": (1.0, 1.0),
    "ssm_multipliers": (1.0,) * 5,
}
"""Factors of 1, since the weights in files include them."""


def numbers_by_layer(model: GgufModel, key: str) -> Sequence[float]:
    """Return one number for each layer: those of an array, or the same for all.

    Args:
        model: The file.
        key: Key of the architecture's metadata; with a dot in front, of the whole file's.

    Raises:
        ModelLoadError: The value is neither, or of another length.
    """
    own = model.own
    layers = own.whole("block_count") or 0
    if not 0 < layers <= len(model.tensors):
        raise own.bad("block_count", "must be a number of layers that are there")
    if key.startswith("."):
        own, key = model.metadata, key[1:]
    if isinstance(own.get(key), int | float):
        return [own.number(key) or 0] * layers
    found = own.numbers(key) or []
    if len(found) != layers:
        raise own.bad(key, f"must be a number, or one for each of {layers} layers")
    if not all(math.isfinite(one) for one in found):
        raise own.bad(key, "must be finite numbers")
    return found


def by_layer(model: GgufModel, key: str) -> Sequence[float]:
    """Return one whole number of at least 0 for each layer; see `numbers_by_layer`.

    Raises:
        ModelLoadError: The value is of another kind or length.
    """
    found = numbers_by_layer(model, key)
    if not all(0 <= one < 2**31 and one == int(one) for one in found):
        raise model.own.bad(key, "must be whole numbers of at least 0")
    return found


def _kinds(model: GgufModel, key: str, other: str) -> Mapping[str, Any]:
    """Return the list of layer types: those with key heads have attention."""
    return {key: ["full_attention" if count else other for count in by_layer(model, _KV)]}


def _channels(model: GgufModel) -> int:
    """Return the inner width of a mixer."""
    return model.own.whole("ssm.inner_size") or 0


def _expand(model: GgufModel) -> float:
    """Return the inner width of a mixer as a multiple of the hidden size."""
    width = model.own.whole("embedding_length") or 1
    return _channels(model) / width


def _head_size(model: GgufModel) -> int:
    """Return the channels of one head of Mamba 2."""
    heads = model.own.whole("ssm.time_step_rank") or 1
    channels = _channels(model)
    if channels % heads:
        key = "ssm.inner_size"
        raise model.own.bad(key, f"must be a multiple of the {heads} heads")
    return channels // heads


def _mamba(model: GgufModel) -> Mapping[str, Any]:
    """Detect Falcon Mamba, which normalises steps, inputs and outputs."""
    is_falcon = model.own.flag("ssm.dt_b_c_rms")
    return {"model_type": "falcon_mamba"} if is_falcon else {}


def _mamba2(model: GgufModel) -> Mapping[str, Any]:
    return {"head_dim": _head_size(model), "expand": _expand(model)}


def _falcon_h1(model: GgufModel) -> Mapping[str, Any]:
    return {
        "mamba_d_ssm": _channels(model),
        "mamba_d_head": _head_size(model),
    }


def _granite(model: GgufModel) -> Mapping[str, Any]:
    """Without experts, the feed-forward of Granite is that of shared experts."""
    own = model.own
    if own.number("attention.scale") is None:
        raise UnsupportedModelError(
            f"{model.file} has no `{own.prefix}attention.scale`, so it is a Bamba, which is not "
            "read of GGUF; use the checkpoint that it was made of"
        )
    found: dict[str, Any] = {
        **_kinds(model, "layer_types", "mamba"),
        "mamba_d_head": _head_size(model),
        "expand": _expand(model),
        "position_embedding_type": ("rope" if own.flag("rope.scaling.finetuned") else "nope"),
    }
    if not own.whole("expert_count"):
        width = own.whole(_FEED)
        return {**found, "num_experts": 0, "shared_intermediate_size": width}
    return found


def _jamba(model: GgufModel) -> Mapping[str, Any]:
    """Express the layers with attention and those with experts as periods."""
    layers = range(len(by_layer(model, _KV)))
    attends = [layer for layer, count in enumerate(by_layer(model, _KV)) if count]
    routed = [n for n in layers if f"blk.{n}.ffn_gate_inp.weight" in model.tensors]
    found: dict[str, Any] = {"expand": _expand(model)}
    for name, chosen in (("attn", attends), ("expert", routed)):
        period = chosen[1] - chosen[0] if len(chosen) > 1 else len(layers)
        offset = chosen[0] if chosen else 0
        if chosen and list(layers[offset::period]) != chosen:
            raise model.own.bad(_KV, f"{name} layers have no period")
        found |= {f"{name}_layer_period": period, f"{name}_layer_offset": offset}
    return found if routed else {**found, "num_experts": 1}


def _nemotron(model: GgufModel) -> Mapping[str, Any]:
    """Tell layers with attention, feed-forward layers and state layers apart."""
    attends, feeds = by_layer(model, _KV), by_layer(model, _FEED)
    return {
        "layers_block_type": [
            "attention" if keys else "mlp" if width else "mamba"
            for keys, width in zip(attends, feeds, strict=True)
        ],
        "mamba_head_dim": _head_size(model),
    }


def _nemotron_experts(model: GgufModel) -> Mapping[str, Any]:
    """Find feed-forward layers by their tensors; drop layers that guess tokens ahead."""
    own = model.own
    found = dict(_nemotron(model))
    kinds = found["layers_block_type"]
    for kind, name in (("moe", "ffn_gate_inp"), ("mlp", "ffn_up")):
        for layer in range(len(kinds)):
            tensor = model.tensors.get(f"blk.{layer}.{name}.weight")
            if tensor is not None:
                kinds[layer] = kind
            if tensor is not None and kind == "mlp":
                found["intermediate_size"] = tensor.shape[0]
    if own.whole("expert_group_used_count") is None:
        found["topk_group"] = 1
    ahead = own.whole("nextn_predict_layers") or 0
    return {**found, "layers_block_type": kinds[: max(0, len(kinds) - ahead)]}


def _lfm2(model: GgufModel) -> Mapping[str, Any]:
    return _kinds(model, "layer_types", "conv")


def _delta(model: GgufModel) -> Mapping[str, Any]:
    """Find the layers with attention, and the size of a value."""
    own = model.own
    layers = layers_of(model) or 0
    heads = own.whole("ssm.time_step_rank") or 1
    kinds = ("linear_attention", "full_attention")
    return {
        "layer_types": [
            kinds[f"blk.{layer}.attn_q.weight" in model.tensors]
            for layer in range(min(layers, len(model.tensors)))
        ],
        "linear_value_head_dim": _channels(model) // heads,
    }


_DELTA: Final[Mapping[str, Any]] = {
    "flags": {"attention_bias": "blk.*.attn_q.bias"},
    "names": {"post_norm": "post_attention_norm"},
    "places": {
        "attn_qkv.weight": Place("mixer.in_proj_qkv.weight"),
        "attn_gate.weight": Place("mixer.in_proj_z.weight"),
        "ssm_alpha.weight": Place("mixer.in_proj_a.weight"),
        "ssm_beta.weight": Place("mixer.in_proj_b.weight"),
        "ssm_in.weight": Place("mixer.in_proj_qkvz.weight"),
        "ssm_ba.weight": Place("mixer.in_proj_ba.weight"),
        "ssm_conv1d.weight": Place("mixer.conv1d.weight", "window"),
        "ssm_a": Place("mixer.A_log", "decay"),
        "ssm_dt.bias": Place("mixer.dt_bias"),
        "ssm_norm.weight": Place("mixer.norm.weight"),
        "ssm_out.weight": Place("mixer.out_proj.weight"),
    },
    "plus_one": True,
    "has_parts": True,
    "more": _delta,
}
"""Common part of Qwen3-Next and Qwen 3.5."""

HYBRIDS: Final[Mapping[str, Architecture]] = {
    "qwen3next": Architecture("qwen3_next", {**_LINEAR, **_SHARED}, **_DELTA),
    "qwen35": Architecture("qwen3_5_text", _LINEAR, values_take_turns=True, **_DELTA),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text", {**_LINEAR, **_SHARED}, values_take_turns=True, **_DELTA
    ),
    "mamba": Architecture(
        "mamba",
        {**_SSM, "ssm.inner_size": "intermediate_size", "ssm.time_step_rank": "time_step_rank"},
        flags=_SSM_FLAGS,
        places=_SELECTIVE,
        more=_mamba,
    ),
    "mamba2": Architecture(
        "mamba2",
        {**_GROUPS, "ssm.time_step_rank": "num_attention_heads"},
        flags=_SSM_FLAGS,
        places=_DUAL,
        more=_mamba2,
    ),
    "falcon-h1": Architecture(
        "falcon_h1",
        {**_GROUPS, "ssm.time_step_rank": "mamba_n_heads"},
        {**_FALCON_FACTORS, "mamba_norm_before_gate": False},
        flags={
            **_SSM_FLAGS,
            "attention_bias": "blk.*.attn_q.bias",
            "mlp_bias": "blk.*.ffn_up.bias",
            "projectors_bias": "blk.*.ssm_out.bias",
            "mamba_rms_norm": "blk.*.ssm_norm.weight",
        },
        places={**_DUAL, "ffn_norm": Place("ffn_norm.weight")},
        more=_falcon_h1,
    ),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        {
            **_GROUPS,
            "ssm.time_step_rank": "mamba_n_heads",
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
            **CHOSEN,
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        flags=_SSM_FLAGS,
        turns_neighbours=True,
        places=_DUAL,
        by_layer=(_KV,),
        more=_granite,
    ),
    "jamba": Architecture(
        "jamba",
        {
            **_SSM,
            "ssm.time_step_rank": "time_step_rank",
            **CHOSEN,
        },
        flags=_SSM_FLAGS,
        places=_SELECTIVE,
        by_layer=(_KV,),
        more=_jamba,
    ),
    "nemotron_h": Architecture(
        "nemotron_h",
        {**_GROUPS, "ssm.time_step_rank": "mamba_num_heads"},
        flags={**_SSM_FLAGS, "mlp_bias": "blk.*.ffn_up.bias"},
        places=_DUAL,
        by_layer=(_KV, _FEED),
        more=_nemotron,
    ),
    "nemotron_h_moe": Architecture(
        "nemotron_h",
        {
            **_GROUPS,
            "ssm.time_step_rank": "mamba_num_heads",
            **EXPERTS,
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
            "moe_latent_size": "moe_latent_size",
        },
        flags={**_SSM_FLAGS, "mlp_bias": "blk.*.ffn_up.bias"},
        names={
            "experts_gate_up": "ffn_up_exps.*",
            "shared_gate_up": "ffn_up_shexp",
            "experts_enter": "ffn_latent_down",
            "experts_leave": "ffn_latent_up",
        },
        places=_DUAL,
        by_layer=(_KV, _FEED),
        more=_nemotron_experts,
        gate=SIGMOID,
    ),
    "lfm2": Architecture(
        "lfm2",
        {"shortconv.l_cache": "conv_L_cache"},
        {"block_auto_adjust_ff_dim": False},
        flags={"conv_bias": "blk.*.shortconv.conv.bias"},
        names={"norm": "token_embd_norm"},
        places=_SHORT,
        by_layer=(_KV,),
        more=_lfm2,
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        {
            "shortconv.l_cache": "conv_L_cache",
            **EXPERTS,
            "leading_dense_block_count": "first_k_dense_replace",
        },
        flags={"conv_bias": "blk.*.shortconv.conv.bias"},
        names={"norm": "token_embd_norm"},
        places=_SHORT,
        by_layer=(_KV,),
        more=_lfm2,
    ),
}
"""Architectures by the name in ``general.architecture``."""
