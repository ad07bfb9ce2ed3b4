"""Mistral: Llama's layout, with a sliding window in every layer where the file asks for one."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family, always

FAMILY = Family(
    "mistral",
    "MistralForCausalLM",
    defaults={
        **SMALL,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    has_qkv_bias=False,
    window=lambda values: values.count_or_none("sliding_window"),
    slides=always(True),
)
