"""MiMo V2 Flash: narrow values; sliding layers have sinks, and twice the heads of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_HEADS
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, as_listed, grouped_plan
from asyncgen.families.plans.layer_plan import HeadsPlan
from asyncgen.families.plans.rope_values import partial_rotary_factor

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.experts_plan import ExpertsPlan


def _sliding_heads(values: ConfigValues) -> int:
    for key, other in (
        ("swa_num_attention_heads", "num_attention_heads"),
        ("swa_head_dim", "head_dim"),
        ("swa_v_head_dim", "v_head_dim"),
    ):
        values.require(key, values.count(other))
    heads = values.count("num_key_value_heads", most=MOST_HEADS)
    return values.count("swa_num_key_value_heads", default=2 * heads, most=MOST_HEADS)


def _kv_heads(values: ConfigValues) -> int:
    heads, sliding = values.count("num_key_value_heads"), _sliding_heads(values)
    if sliding % heads:
        raise values.bad("swa_num_key_value_heads", sliding, f"must be a multiple of {heads}")
    return sliding


def _heads(values: ConfigValues, layer: int, kind: str) -> HeadsPlan:
    is_sliding = kind == "sliding_attention"
    heads = _sliding_heads(values) if is_sliding else values.count("num_key_value_heads")
    size, narrow = values.count("head_dim"), values.count("v_head_dim")
    if narrow > size:
        raise values.bad("v_head_dim", narrow, f"must be at most head_dim ({size})")
    key = "attention_value_scale"
    scale = 1.0 if values.stated(key) is None else values.positive(key)
    return HeadsPlan(heads, narrow, scale)


def _listed(values: ConfigValues, key: str, layer: int) -> bool | None:
    """Read a layer's entry of a list of 0 and 1; ``None``: there is no list."""
    layers = values.count("num_hidden_layers")
    stated = values.listed(key, layers, lambda one: one in (0, 1), "0 or 1")
    return None if stated is None else bool(stated[layer])


def _slides(values: ConfigValues, layer: int) -> bool:
    stated = _listed(values, "hybrid_layer_pattern", layer)
    return layer != 0 and (layer + 1) % 6 != 0 if stated is None else stated


def _window(values: ConfigValues) -> int:
    # The older key does not count the token itself.
    if values.value("sliding_window_size") is not None:
        return values.count("sliding_window_size") + 1
    return values.count("sliding_window")


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    stated = _listed(values, "moe_layer_freq", layer)
    return grouped_plan(values) if stated or (stated is None and layer) else None


FAMILY = Family(
    "mimo_v2_flash",
    "MiMoV2FlashForCausalLM",
    names={**EXPERT_NAMES, "sinks": "self_attn.attention_sink_bias"},
    # Separate layers that guess tokens ahead.
    unneeded=(r"^model\.mtp\.",),
    defaults={
        "vocab_size": 152576,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "attention_value_scale": 0.707,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "partial_rotary_factor": 0.334,
        "sliding_window": 129,
        "bos_token_id": 1,
        "moe_intermediate_size": 2048,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    spellings={
        "num_experts": "n_routed_experts",
        "rope_local_base_freq": "swa_rope_theta",
        "rms_norm_eps": "layernorm_epsilon",
    },
    only={
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_shared_experts": 0,
    },
    kv_heads=_kv_heads,
    heads=_heads,
    partial_rotary_factor=partial_rotary_factor,
    ropes_by_kind=True,
    has_output_bias=False,
    window=_window,
    slides=_slides,
    has_layer_types=True,
    has_sinks=lambda values, layer, kind: kind == "sliding_attention",
    experts=as_listed(grouped_plan, _experts),
)
