"""Code World Model: Llama's layer; three of four layers slide."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family

FAMILY = Family(
    "cwm",
    "CwmForCausalLM",
    defaults={
        **SMALL,
        "vocab_size": 128256,
        "hidden_size": 6144,
        "intermediate_size": 21504,
        "num_hidden_layers": 64,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
        "sliding_window": 8192,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
    },
    has_qkv_bias=False,
    window=lambda values: values.count("sliding_window"),
    slides=lambda values, layer: layer % 4 != 0,
    has_layer_types=True,
)
