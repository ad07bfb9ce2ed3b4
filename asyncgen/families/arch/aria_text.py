"""Aria's text model: Llama's attention; experts in one tensor, and shared ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, experts_plan
from asyncgen.families.plans.experts_plan import MOST_EXPERTS

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.experts_plan import ExpertsPlan


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan:
    plan = experts_plan(values, width="intermediate_size", is_normalised=True)
    shared = values.count("moe_num_shared_experts", most=MOST_EXPERTS)
    return replace(plan, shared_width=shared * plan.width, is_transposed=True)


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
    experts=_experts,
)
