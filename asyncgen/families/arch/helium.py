"""Helium: Llama's layer; adjacent features rotate."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family, flag

FAMILY = Family(
    "helium",
    "HeliumForCausalLM",
    defaults={
        **SMALL,
        "vocab_size": 48000,
        "hidden_size": 2560,
        "intermediate_size": 7040,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100_000.0,
        "pad_token_id": 3,
    },
    is_interleaved=True,
    has_output_bias=False,
    has_up_bias=flag("mlp_bias"),
)
