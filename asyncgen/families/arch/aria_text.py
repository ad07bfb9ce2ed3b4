"""Aria's text model: Llama's attention; experts in one tensor, and shared ones."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts
from asyncgen.families.plans.experts_plan import MOST_EXPERTS

FAMILY = Family(
    "aria_text",
    "AriaTextForCausalLM",
    names={
        **EXPERT_NAMES,
        "router": "mlp.router",
        "experts_gate_up": "mlp.experts.fc1.weight",
        "experts_down": "mlp.experts.fc2.weight",
    },
    defaults={
        **SMALL,
        "pad_token_id": 2,
        "intermediate_size": 4096,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_num_shared_experts": 2,
    },
    spellings={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_topk"},
    experts=declare_experts(
        width="intermediate_size",
        is_normalised=True,
        is_transposed=True,
        shared_width=lambda values: (
            values.count("moe_num_shared_experts", most=MOST_EXPERTS)
            * values.count("intermediate_size")
        ),
    ),
)
