"""Seed-OSS: Llama's layer with biases on queries, keys and values."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, flag

FAMILY = Family(
    "seed_oss",
    "SeedOssForCausalLM",
    defaults={
        "vocab_size": 155136,
        "hidden_size": 4096,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "attention_bias": True,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    has_output_bias=flag("attention_out_bias"),
    has_up_bias=flag("mlp_bias"),
)
