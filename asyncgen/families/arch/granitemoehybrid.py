"""Granite 4: Mamba 2 in most layers, attention in the others; experts beside a shared one.

Without experts the shared one is the feed-forward.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.granitemoeshared import FAMILY as GRANITEMOESHARED
from asyncgen.families.arch.granitemoeshared import SHARED_NAMES, experts
from asyncgen.families.plans.declaration import SMALL
from asyncgen.families.plans.layer_kinds import FULL, STATE, listed
from asyncgen.families.plans.state_plan import MAMBA_2, MAMBA_SPELLINGS, dual_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues, Kinds
    from asyncgen.families.plans.declaration import Family
    from asyncgen.families.plans.experts_plan import ExpertsPlan
    from asyncgen.families.plans.layer_plan import Positions

_KINDS = {"mamba": STATE, "attention": FULL, STATE: STATE, FULL: FULL}


def _kinds(values: ConfigValues) -> Kinds:
    """Read the kinds from one of two keys; without these all layers keep states."""
    key = "layers_block_type" if values.value("layers_block_type") is not None else "layer_types"
    return listed(lambda values, layer: STATE, _KINDS, key)(values)


def _has_experts(values: ConfigValues) -> bool:
    return values.value("num_experts") not in (None, 0)


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    return experts(values, layer) if _has_experts(values) else None


def _width(values: ConfigValues) -> int:
    return values.count("intermediate_size" if _has_experts(values) else "shared_intermediate_size")


def _names(values: ConfigValues) -> Mapping[str, str]:
    alone = {"gate_up": SHARED_NAMES["shared_gate_up"], "down": SHARED_NAMES["shared_down"]}
    names = {**SHARED_NAMES, "mixer": "mamba"}
    return names if _has_experts(values) else {**names, **alone}


def _positions(values: ConfigValues) -> Positions:
    stated = values.value("position_embedding_type")
    if stated in (None, "nope"):
        return "none"
    values.require("position_embedding_type", "rope")
    return "rotary"


FAMILY: Family = replace(
    GRANITEMOESHARED,
    model_type="granitemoehybrid",
    class_name="GraniteMoeHybridForCausalLM",
    names=_names,
    defaults={
        **GRANITEMOESHARED.defaults,
        **SMALL,
        **MAMBA_2,
        "shared_intermediate_size": 1024,
    },
    spellings={**GRANITEMOESHARED.spellings, **MAMBA_SPELLINGS},
    only={"hidden_act": "silu"},
    kinds=_kinds,
    mixer=lambda values, layer: dual_plan(
        values, heads_key="mamba_n_heads", size_key="mamba_d_head"
    ),
    width=_width,
    positions=_positions,
    experts=_experts,
)
