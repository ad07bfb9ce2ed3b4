"""Granite with experts, and sinks in all layers; three of four slide."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.granite_swa import layer_theta
from asyncgen.families.arch.granitemoeshared import FAMILY as GRANITEMOESHARED
from asyncgen.families.arch.granitemoeshared import SHARED_NAMES
from asyncgen.families.plans.declaration import always

if TYPE_CHECKING:
    from asyncgen.families.plans.declaration import Family

FAMILY: Family = replace(
    GRANITEMOESHARED,
    model_type="granitemoe_swa",
    class_name="GraniteMoeSWAForCausalLM",
    names={
        **SHARED_NAMES,
        "sinks": "self_attn.sinks",
        "router": "block_sparse_moe.router",
        "experts_gate_up": "block_sparse_moe.experts.gate_up_proj",
        "experts_down": "block_sparse_moe.experts.down_proj",
    },
    defaults={**GRANITEMOESHARED.defaults, "sliding_window": 128},
    has_rope=lambda values, layer, kind: layer_theta(values, layer) != 0,
    layer_theta=layer_theta,
    window=lambda values: values.count_or_none("sliding_window"),
    slides=lambda values, layer: layer % 4 != 0,
    has_layer_types=True,
    has_sinks=always(True),
)
