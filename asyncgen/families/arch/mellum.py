"""Mellum 2: Qwen 3's attention and experts; sliding layers have their own rope."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.expert_values import EXPERT_NAMES, as_listed, declare_experts
from asyncgen.families.plans.layer_plan import HeadNormPlan

_plan = declare_experts(is_normalised=flag("norm_topk_prob"))

FAMILY = Family(
    "mellum",
    "MellumForCausalLM",
    names=EXPERT_NAMES,
    # A separate layer that guesses tokens ahead.
    unneeded=(r"^(model\.)?mtp",),
    defaults={
        "vocab_size": 98304,
        "hidden_size": 2304,
        "intermediate_size": 7168,
        "num_hidden_layers": 28,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "sliding_window": 1024,
        "moe_intermediate_size": 896,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    spellings={"num_experts": "num_local_experts"},
    ropes_by_kind=True,
    head_norm=HeadNormPlan(),
    window=lambda values: values.count_or_none("sliding_window"),
    has_layer_types=True,
    experts=as_listed(_plan, _plan),
)
