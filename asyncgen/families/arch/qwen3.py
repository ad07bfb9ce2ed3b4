"""Qwen 3: queries and keys are normalised per head; heads may be wider than their share."""

from __future__ import annotations

from asyncgen.families.arch.qwen2 import QWEN, slides, window
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    defaults={**QWEN, "head_dim": 128},
    head_norm=HeadNormPlan(),
    window=window,
    slides=slides,
    has_layer_types=True,
)
