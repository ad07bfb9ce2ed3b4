"""OLMo 3: OLMo 2 with three of four sliding layers; a scaled rope is that of the others."""

from __future__ import annotations

from asyncgen.families.arch.olmo import OLMO
from asyncgen.families.arch.olmo2 import OLMO2_NAMES
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "olmo3",
    "Olmo3ForCausalLM",
    names=OLMO2_NAMES,
    defaults={
        **OLMO,
        "sliding_window": 4096,
        "rope_theta": 500_000.0,
        "rope_local_base_freq": 500_000.0,
    },
    unread=frozenset({"rope_local_base_freq"}),
    ropes_by_kind=True,
    head_norm=HeadNormPlan(span="width"),
    window=lambda values: values.count("sliding_window"),
    slides=lambda values, layer: layer % 4 != 3,
    has_layer_types=True,
)
