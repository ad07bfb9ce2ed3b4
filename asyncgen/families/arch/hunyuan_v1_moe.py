"""Hunyuan with experts, and a shared one that every token passes through."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    names={
        **EXPERT_NAMES,
        "q_norm": "self_attn.query_layernorm",
        "k_norm": "self_attn.key_layernorm",
        "router": "mlp.gate.wg",
        "shared_gate_up": "mlp.shared_mlp.gate_proj mlp.shared_mlp.up_proj",
        "shared_down": "mlp.shared_mlp.down_proj",
    },
    defaults={
        **SMALL,
        "vocab_size": 290943,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 0,
        "num_experts": 1,
        "num_experts_per_tok": 1,
    },
    spellings={"num_experts_per_tok": "moe_topk"},
    has_rope_alpha=True,
    head_norm=HeadNormPlan(is_after_rope=True),
    experts=declare_experts(
        width="intermediate_size",
        is_normalised=True,
        shared_width=lambda values: values.count("intermediate_size"),
    ),
)
