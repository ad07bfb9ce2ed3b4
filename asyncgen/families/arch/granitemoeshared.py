"""Granite 3 with experts, and a shared one that every token passes through."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.granitemoe import FAMILY as GRANITEMOE
from asyncgen.families.arch.granitemoe import GRANITEMOE_NAMES
from asyncgen.families.plans.expert_values import declare_experts

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.declaration import Family


def _shared_width(values: ConfigValues) -> int:
    key = "shared_intermediate_size"
    return 0 if values.value(key) in (None, 0) else values.count(key)


experts = declare_experts(width="intermediate_size", is_normalised=True, shared_width=_shared_width)
"""Granite's experts, and a shared one if the file gives its width."""

SHARED_NAMES = {
    **GRANITEMOE_NAMES,
    "shared_gate_up": "shared_mlp.input_linear",
    "shared_down": "shared_mlp.output_linear",
}

FAMILY: Family = replace(
    GRANITEMOE,
    model_type="granitemoeshared",
    class_name="GraniteMoeSharedForCausalLM",
    names=SHARED_NAMES,
    experts=experts,
)
