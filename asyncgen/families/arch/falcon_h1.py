"""Falcon H1: in every layer Mamba 2 and attention side by side, with factors on all parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.bamba import BESIDE_MAMBA
from asyncgen.families.plans.config_values import number
from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.layer_kinds import BOTH, all_of
from asyncgen.families.plans.state_plan import MAMBA_2, MAMBA_SPELLINGS, dual_plan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.state_plan import StatePlan

_FACTORS = {
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "key_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
    "ssm_in_multiplier": 1.0,
    "ssm_out_multiplier": 1.0,
    "mlp_multipliers": (1.0, 1.0),
    "ssm_multipliers": (1.0,) * 5,
}


def _listed(values: ConfigValues, key: str, count: int) -> tuple[float, ...]:
    """Read a list of so many factors."""
    stated = values.value(key)
    if not isinstance(stated, (list, tuple)) or len(stated) != count or None in stated:
        raise values.bad(key, stated, f"must list {count} numbers")
    return tuple(number({key: each}, key, 0.0) for each in stated)


def _mixer(values: ConfigValues, layer: int) -> StatePlan:
    channels = values.stated("mamba_d_ssm")
    plan = dual_plan(
        values,
        heads_key="mamba_n_heads",
        size_key="mamba_d_head",
        channels=None if channels is None else values.count("mamba_d_ssm"),
    )
    return replace(
        plan,
        has_leave_bias=values.flag("projectors_bias"),
        eps=plan.eps if values.flag("mamba_rms_norm") else None,
        norms_first=values.flag("mamba_norm_before_gate"),
        factors=_listed(values, "ssm_multipliers", 5),
        enter_scale=values.number("ssm_in_multiplier"),
        leave_scale=values.number("ssm_out_multiplier"),
    )


def _attention_scale(values: ConfigValues) -> float:
    """Move the factor on keys to the scores."""
    heads = values.count("num_attention_heads")
    size = values.head_dim(values.count("hidden_size"), heads, is_rotary=True)
    return values.positive("key_multiplier") / size**0.5


FAMILY = Family(
    "falcon_h1",
    "FalconH1ForCausalLM",
    names=BESIDE_MAMBA,
    defaults={
        **MAMBA_2,
        **_FACTORS,
        "vocab_size": 128000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "mamba_d_ssm": 1024,
        "mamba_d_head": 8,
        "mamba_norm_before_gate": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    spellings=MAMBA_SPELLINGS,
    only={"hidden_act": "silu"},
    kinds=all_of(BOTH),
    mixer=_mixer,
    has_up_bias=flag("mlp_bias"),
    attention_scale=_attention_scale,
    embedding_scale=lambda values: values.number("embedding_multiplier"),
    scales_rows=True,
    heads_scale=lambda values: values.number("attention_in_multiplier"),
    output_scale=lambda values: values.number("attention_out_multiplier"),
    gate_scale=lambda values: _listed(values, "mlp_multipliers", 2)[0],
    down_scale=lambda values: _listed(values, "mlp_multipliers", 2)[1],
    logit_scale=lambda values: values.number("lm_head_multiplier"),
)
