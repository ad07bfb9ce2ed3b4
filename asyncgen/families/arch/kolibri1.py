"""Kolibri 1: norms around both parts; four of five layers slide, and have a rope; a shared
expert."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "kolibri1",
    "Kolibri1ForCausalLM",
    names={
        **EXPERT_NAMES,
        "correction": "moe.router.expert_bias",
        "output_norm": "post_attn_norm",
        "down_norm": "post_ffn_norm",
    },
    defaults={
        "vocab_size": 128000,
        "hidden_size": 2560,
        "num_hidden_layers": 50,
        "num_attention_heads": 48,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 384,
        "num_experts_per_tok": 6,
    },
    spellings={"num_experts": "num_local_experts"},
    width=lambda values: values.count("moe_intermediate_size"),
    has_rope=lambda values, layer, kind: kind == "sliding_attention",
    has_qkv_bias=False,
    head_norm=HeadNormPlan(),
    window=lambda values: values.count_or_none("sliding_window"),
    slides=lambda values, layer: (layer + 1) % 5 != 0,
    has_layer_types=True,
    experts=declare_experts(
        scoring="sigmoid",
        is_normalised=flag("norm_topk_prob"),
        corrects_logits=True,
        is_corrected=True,
        shared_width=lambda values: values.count("shared_expert_intermediate_size"),
    ),
)
