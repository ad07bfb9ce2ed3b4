"""Falcon Mamba: Mamba with norms of steps, inputs and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.mamba import MAMBA, MAMBA_NAMES, MAMBA_UNREAD
from asyncgen.families.plans.declaration import Family, always
from asyncgen.families.plans.layer_kinds import STATE, all_of
from asyncgen.families.plans.state_plan import StatePlan, expanded_width, selective_plan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _mixer(values: ConfigValues, layer: int) -> StatePlan:
    return selective_plan(values, eps=values.number("mixer_rms_eps"))


FAMILY = Family(
    "falcon_mamba",
    "FalconMambaForCausalLM",
    names=MAMBA_NAMES,
    defaults={**MAMBA, "mixer_rms_eps": 1e-6},
    spellings={"rms_norm_eps": "layer_norm_epsilon"},
    unread=MAMBA_UNREAD,
    only={"hidden_act": "silu", "time_step_scale": 1.0},
    positions="none",
    width=expanded_width,
    kinds=all_of(STATE),
    mixer=_mixer,
    has_qkv_bias=False,
    has_feed_forward=always(False),
)
