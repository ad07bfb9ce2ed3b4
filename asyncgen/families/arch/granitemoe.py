"""Granite 3 with experts, which its files store one behind the other."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family
from asyncgen.families.plans.expert_values import experts_plan

GRANITEMOE_NAMES = {
    **LLAMA_NAMES,
    "router": "block_sparse_moe.router.layer",
    "experts_gate_up": "block_sparse_moe.input_linear.weight",
    "experts_down": "block_sparse_moe.output_linear.weight",
}

FAMILY = Family(
    "granitemoe",
    "GraniteMoeForCausalLM",
    names=GRANITEMOE_NAMES,
    defaults={
        **SMALL,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
    },
    spellings={"num_experts": "num_local_experts"},
    attention_scale=lambda values: values.positive("attention_multiplier"),
    embedding_scale=lambda values: values.positive("embedding_multiplier"),
    residual_scale=lambda values: values.positive("residual_multiplier"),
    logit_scale=lambda values: 1 / values.positive("logits_scaling"),
    experts=lambda values, layer: experts_plan(
        values, width="intermediate_size", is_normalised=True
    ),
)
