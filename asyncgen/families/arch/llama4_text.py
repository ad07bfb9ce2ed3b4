"""Llama 4's text model: layers with a rope see chunks, the others all; experts weigh their
inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, experts_plan
from asyncgen.families.plans.layer_plan import HeadNormPlan, NormPlan
from asyncgen.families.plans.rope_config import QueryScaling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.experts_plan import ExpertsPlan


def _has_rope(values: ConfigValues, layer: int, kind: str) -> bool:
    # The list has 1 for layers with a rope, whatever its name says.
    key, layers = "no_rope_layers", values.count("num_hidden_layers", most=MOST_LAYERS)

    def checked(stated: object) -> Sequence[int]:
        is_list = isinstance(stated, (list, tuple)) and len(stated) >= layers
        if stated and (not is_list or any(one not in (0, 1) for one in stated)):  # type: ignore[attr-defined]
            raise values.bad(key, stated, f"must list 0 or 1 for {layers} layers")
        return stated or ()  # type: ignore[return-value]

    stated = values.once(key, checked)
    if not stated:
        return (layer + 1) % values.count("no_rope_layer_interval") != 0
    return bool(stated[layer])


def _head_norm(values: ConfigValues) -> HeadNormPlan | None:
    plain = HeadNormPlan(NormPlan(has_weight=False), is_after_rope=True)
    return plain if values.flag("use_qk_norm") else None


def _query_scaling(values: ConfigValues) -> QueryScaling | None:
    # Early files say 4 in the place of true.
    key = "attn_temperature_tuning"
    stated = values.value(key)
    if stated is not None and not isinstance(stated, int):
        raise values.bad(key, stated, "must be true or false")
    if not stated:
        return None
    return QueryScaling(values.positive("attn_scale"), values.count("floor_scale"), 1)


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    def checked(stated: object) -> frozenset[int] | None:
        if stated is None:
            return None
        if not isinstance(stated, (list, tuple)) or any(type(one) is not int for one in stated):
            raise values.bad("moe_layers", stated, "must be a list of layers")
        return frozenset(stated)

    stated = values.once("moe_layers", checked)
    step = values.count("interleave_moe_layer_step")
    if (layer + 1) % step != 0 if stated is None else layer not in stated:
        return None
    return experts_plan(
        values,
        width="intermediate_size",
        scoring="sigmoid",
        weighs_inputs=True,
        shared_width=values.count("intermediate_size"),
        is_transposed=True,
    )


FAMILY = Family(
    "llama4_text",
    "Llama4ForCausalLM",
    names={
        **EXPERT_NAMES,
        "gate_up": "feed_forward.gate_proj feed_forward.up_proj",
        "down": "feed_forward.down_proj",
        "router": "feed_forward.router",
        "experts_gate_up": "feed_forward.experts.gate_up_proj",
        "experts_down": "feed_forward.experts.down_proj",
        "shared_gate_up": "feed_forward.shared_expert.gate_proj feed_forward.shared_expert.up_proj",
        "shared_down": "feed_forward.shared_expert.down_proj",
    },
    defaults={
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "num_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "use_qk_norm": True,
        "attn_temperature_tuning": True,
        "attn_scale": 0.1,
        "floor_scale": 8192,
    },
    spellings={"num_experts": "num_local_experts"},
    width=lambda values: values.count("intermediate_size_mlp"),
    is_interleaved=True,
    has_rope=_has_rope,
    no_rope_query_scaling=_query_scaling,
    head_norm=_head_norm,
    has_head_norm=_has_rope,
    window=lambda values: values.count_or_none("attention_chunk_size"),
    slides=lambda values, layer: _has_rope(values, layer, ""),
    has_layer_types=True,
    is_chunked=True,
    experts=_experts,
)
