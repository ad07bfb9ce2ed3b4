"""Jamba: Mamba in most layers, attention without a rope in each n-th; experts in each m-th."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.bamba import BESIDE_MAMBA
from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import experts_plan
from asyncgen.families.plans.layer_kinds import FULL, STATE
from asyncgen.families.plans.state_plan import MAMBA_SPELLINGS, expanded, selective_plan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues, Kinds
    from asyncgen.families.plans.experts_plan import ExpertsPlan
    from asyncgen.families.plans.state_plan import StatePlan


def _is_at(values: ConfigValues, layer: int, name: str) -> bool:
    """Return whether a layer is one of those that a period and an offset name."""
    period, offset = values.count(f"{name}_period"), values.whole(f"{name}_offset")
    if offset >= period:
        raise values.bad(f"{name}_offset", offset, f"must be below {name}_period ({period})")
    return layer % period == offset


def _kinds(values: ConfigValues) -> Kinds:
    count = values.count("num_hidden_layers", most=MOST_LAYERS)
    return tuple(FULL if _is_at(values, layer, "attn_layer") else STATE for layer in range(count))


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    if values.count("num_experts") == 1 or not _is_at(values, layer, "expert_layer"):
        return None
    return experts_plan(values, width="intermediate_size", is_normalised=False)


def _mixer(values: ConfigValues, layer: int) -> StatePlan:
    channels = expanded(values)
    plan = selective_plan(values, eps=values.epsilon(), channels=channels)
    return replace(plan, has_norm_weights=True)


FAMILY = Family(
    "jamba",
    "JambaForCausalLM",
    names={
        **BESIDE_MAMBA,
        "router": "feed_forward.router",
        "experts_gate_up": "feed_forward.experts.*.gate_proj feed_forward.experts.*.up_proj",
        "experts_down": "feed_forward.experts.*.down_proj",
    },
    defaults={
        "vocab_size": 65536,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "state_size": 16,
        "conv_kernel": 4,
        "expand": 2,
        "use_conv_bias": True,
        "time_step_rank": "auto",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    spellings={**MAMBA_SPELLINGS, "time_step_rank": "mamba_dt_rank"},
    unread=frozenset({"head_dim"}),
    only={"hidden_act": "silu"},
    positions="none",
    kinds=_kinds,
    mixer=_mixer,
    has_qkv_bias=False,
    experts=_experts,
)
