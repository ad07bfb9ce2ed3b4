"""Solar Open: Llama's attention and DeepSeek-V3's experts, in all layers."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, grouped_plan
from asyncgen.families.plans.rope_values import partial_rotary_factor

FAMILY = Family(
    "solar_open",
    "SolarOpenForCausalLM",
    names=EXPERT_NAMES,
    defaults={
        "vocab_size": 196608,
        "hidden_size": 4096,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "moe_intermediate_size": 1280,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
    },
    spellings={"num_experts": "n_routed_experts"},
    only={"first_k_dense_replace": 0, "use_qk_norm": False},
    width=lambda values: values.count("moe_intermediate_size"),
    partial_rotary_factor=partial_rotary_factor,
    has_output_bias=False,
    experts=lambda values, layer: grouped_plan(values),
)
