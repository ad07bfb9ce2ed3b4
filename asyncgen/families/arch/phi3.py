"""Phi 3, 3.5 and 4: Llama's layer with joined matrices; heads may rotate in part."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family, always
from asyncgen.families.plans.rope_values import partial_rotary_factor

FAMILY = Family(
    "phi3",
    "Phi3ForCausalLM",
    names={**LLAMA_NAMES, "qkv": "self_attn.qkv_proj", "gate_up": "mlp.gate_up_proj"},
    defaults={
        **SMALL,
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 32000,
        "pad_token_id": 32000,
    },
    partial_rotary_factor=partial_rotary_factor,
    has_qkv_bias=False,
    window=lambda values: values.count_or_none("sliding_window"),
    slides=always(True),
)
