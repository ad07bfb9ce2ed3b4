"""Falcon Mamba: Mamba with norms of steps, inputs and outputs."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import mamba
from asyncgen.families.plans.state_plan import selective_plan

FAMILY = replace(
    mamba.FAMILY,
    model_type="falcon_mamba",
    class_name="FalconMambaForCausalLM",
    defaults={**mamba.FAMILY.defaults, "mixer_rms_eps": 1e-6},
    mixer=lambda values, layer: selective_plan(values, eps=values.number("mixer_rms_eps")),
)
