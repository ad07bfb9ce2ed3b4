"""Phi 3.5 MoE: norms by mean and variance, and two experts, one chosen after the other."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LAYER, SMALL, Family, always, flag
from asyncgen.families.plans.expert_values import MIXTRAL_NAMES, declare_experts

FAMILY = Family(
    "phimoe",
    "PhimoeForCausalLM",
    names=MIXTRAL_NAMES,
    defaults={
        **SMALL,
        "vocab_size": 32064,
        "intermediate_size": 6400,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.01,
    },
    spellings={"num_experts": "num_local_experts"},
    only={"num_experts_per_tok": 2},
    norm=LAYER,
    has_head_bias=flag("lm_head_bias"),
    window=lambda values: values.count_or_none("sliding_window"),
    slides=always(True),
    experts=declare_experts(
        width="intermediate_size",
        scoring="sparsemixer",
        tolerance=lambda values: 2 * values.positive("router_jitter_noise"),
    ),
)
