"""Mixtral: Mistral's layer with experts; the weights of those chosen sum up to one."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family, always
from asyncgen.families.plans.expert_values import MIXTRAL_NAMES, declare_experts

FAMILY = Family(
    "mixtral",
    "MixtralForCausalLM",
    names=MIXTRAL_NAMES,
    defaults={
        **SMALL,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    spellings={"num_experts": "num_local_experts"},
    has_qkv_bias=False,
    window=lambda values: values.count_or_none("sliding_window"),
    slides=always(True),
    experts=declare_experts(width="intermediate_size", is_normalised=True),
)
