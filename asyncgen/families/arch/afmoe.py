"""Arcee's Trinity: a gate behind attention, norms around both parts; only sliding layers have a
rope."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, slides_but_every
from asyncgen.families.plans.expert_values import EXPERT_NAMES, dense_before, grouped_plan
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "afmoe",
    "AfmoeForCausalLM",
    names={
        **EXPERT_NAMES,
        "attention_gate": "self_attn.gate_proj",
        "output_norm": "post_attention_layernorm",
        "post_norm": "pre_mlp_layernorm",
        "down_norm": "post_mlp_layernorm",
        "router": "mlp.router.gate",
        "correction": "mlp.expert_bias",
    },
    defaults={
        "vocab_size": 200192,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "head_dim": 128,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "sliding_window": 1024,
        "global_attn_every_n_layers": 4,
        "moe_intermediate_size": 1408,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "num_dense_layers": 1,
        "norm_topk_prob": True,
    },
    spellings={
        "n_shared_experts": "num_shared_experts",
        "first_k_dense_replace": "num_dense_layers",
        "routed_scaling_factor": "route_scale",
        "norm_topk_prob": "route_norm",
    },
    only={"score_func": "sigmoid", "route_norm": True},
    has_rope=lambda values, layer, kind: kind == "sliding_attention",
    head_norm=HeadNormPlan(),
    has_gate=True,
    window=lambda values: values.count("sliding_window"),
    slides=slides_but_every("global_attn_every_n_layers"),
    has_layer_types=True,
    embedding_scale=lambda values: (
        values.count("hidden_size") ** 0.5 if values.flag("mup_enabled") else 1.0
    ),
    experts=dense_before(grouped_plan),
)
