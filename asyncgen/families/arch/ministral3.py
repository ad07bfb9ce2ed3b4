"""Ministral 3: Mistral with queries that grow with the logarithm of their position."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import mistral
from asyncgen.families.plans.declaration import SMALL

FAMILY = replace(
    mistral.FAMILY,
    model_type="ministral3",
    class_name="Ministral3ForCausalLM",
    defaults={
        **SMALL,
        "vocab_size": 131072,
        "intermediate_size": 14336,
        "num_hidden_layers": 34,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        "pad_token_id": 11,
    },
    scales_queries=True,
)
