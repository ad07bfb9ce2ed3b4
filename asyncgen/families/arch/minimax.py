"""MiniMax-Text-01: lightning attention in most layers, softmax attention in the others; experts.

A norm's result replaces the stream that a part is added to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncgen.families.arch.minimax_m2 import features_part
from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.expert_values import MIXTRAL_NAMES, declare_experts
from asyncgen.families.plans.layer_kinds import FULL, STATE, listed
from asyncgen.families.plans.lightning_plan import lightning_plan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues, Kinds

_kinds = listed(lambda values, layer: STATE if layer % 2 else FULL)


def _window(values: ConfigValues) -> int | None:
    return values.count_or_none("sliding_window")


def _sliding_kinds(values: ConfigValues) -> Kinds:
    """Let attending layers slide if there is a window."""
    attending = FULL if _window(values) is None else "sliding_attention"
    return tuple(attending if kind == FULL else kind for kind in _kinds(values))


def _rotary_part(values: ConfigValues) -> float:
    """Read the part of a head that rotates: of ``rotary_dim`` alone, as the makers' code."""
    for place in (values.raw, values.value("rope_parameters")):
        if isinstance(place, Mapping) and place.get("partial_rotary_factor") not in (None, 1, 1.0):
            part = place["partial_rotary_factor"]
            raise values.bad("partial_rotary_factor", part, "is not read: rotary_dim says it")
    return 1.0 if values.value("rotary_dim") is None else features_part(values)


def _normed_residual(values: ConfigValues, layer: int, kind: str) -> tuple[float, float]:
    part = "linear_attn" if kind == STATE else "full_attn"
    return values.number(f"{part}_alpha_factor"), values.number("mlp_alpha_factor")


FAMILY = Family(
    "minimax",
    "MiniMaxForCausalLM",
    names={**MIXTRAL_NAMES, "mixer": "self_attn"},
    # These follow from a layer's number, but are stored.
    unneeded=(r"\.self_attn\.(slope_rate|query_decay|key_decay|diagonal_decay)$",),
    defaults={
        **SMALL,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        **{
            f"{part}_{which}_factor": 1.0
            for part in ("full_attn", "linear_attn", "mlp")
            for which in ("alpha", "beta")
        },
    },
    spellings={"num_experts": "num_local_experts"},
    only={"hidden_act": "silu"},
    kinds=_sliding_kinds,
    has_qkv_bias=False,
    window=_window,
    partial_rotary_factor=_rotary_part,
    mixer=lightning_plan,
    allows_dola=True,
    normed_residual=_normed_residual,
    output_scale=lambda values: values.number("full_attn_beta_factor"),
    experts=declare_experts(
        width="intermediate_size",
        is_normalised=True,
        scale=lambda values: values.number("mlp_beta_factor"),
    ),
)
