"""Hunyuan 3: norms of heads and DeepSeek-V3's experts."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import (
    EXPERT_NAMES,
    as_listed,
    dense_before,
    grouped_plan,
)
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "hy_v3",
    "HYV3ForCausalLM",
    names={
        **EXPERT_NAMES,
        "router": "mlp.router.gate",
        "correction": "mlp.expert_bias",
        "shared_gate_up": "mlp.shared_mlp.gate_proj mlp.shared_mlp.up_proj",
        "shared_down": "mlp.shared_mlp.down_proj",
    },
    defaults={
        "vocab_size": 120832,
        "hidden_size": 4096,
        "intermediate_size": 13312,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11_158_840.0,
        "moe_intermediate_size": 1536,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.826,
    },
    only={
        "norm_topk_prob": True,
        "route_norm": True,
        "qk_norm": True,
        "moe_router_use_sigmoid": True,
        "moe_router_enable_expert_bias": True,
    },
    spellings={
        "n_shared_experts": "num_shared_experts",
        "routed_scaling_factor": "router_scaling_factor",
    },
    head_norm=HeadNormPlan(),
    experts=as_listed(grouped_plan, dense_before(grouped_plan)),
)
