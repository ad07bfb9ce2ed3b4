"""Granite 3 with experts; files store one tensor of all experts."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import granite
from asyncgen.families.plans.declaration import LLAMA_NAMES
from asyncgen.families.plans.expert_values import declare_experts

GRANITEMOE_NAMES = {
    **LLAMA_NAMES,
    "router": "block_sparse_moe.router.layer",
    "experts_gate_up": "block_sparse_moe.input_linear.weight",
    "experts_down": "block_sparse_moe.output_linear.weight",
}

FAMILY = replace(
    granite.FAMILY,
    model_type="granitemoe",
    class_name="GraniteMoeForCausalLM",
    names=GRANITEMOE_NAMES,
    defaults={**granite.GRANITE, "num_experts": 8, "num_experts_per_tok": 2},
    spellings={"num_experts": "num_local_experts"},
    has_up_bias=False,
    experts=declare_experts(width="intermediate_size", is_normalised=True),
)
