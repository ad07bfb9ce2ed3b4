"""Qwen 3 with experts: Qwen 3's layer; usually a router over 128 of them."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, always, flag
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts, sparse_steps
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    names=EXPERT_NAMES,
    defaults={
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    spellings={"num_experts": "num_local_experts"},
    head_norm=HeadNormPlan(),
    window=lambda values: (
        values.count_or_none("sliding_window") if values.flag("use_sliding_window") else None
    ),
    slides=always(True),
    experts=sparse_steps(declare_experts(is_normalised=flag("norm_topk_prob"))),
)
