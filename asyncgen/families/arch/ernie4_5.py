"""ERNIE 4.5's dense models: Llama's layer; adjacent features rotate."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, flag

FAMILY = Family(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    defaults={
        "vocab_size": 103424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    is_interleaved=True,
    has_qkv_bias=flag("use_bias"),
    has_up_bias=flag("use_bias"),
)
