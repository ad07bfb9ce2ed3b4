"""Youtu-LLM: DeepSeek-V3's latent attention without experts."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.latent_values import (
    latent_kv_heads,
    latent_names,
    latent_plan,
    latent_scale,
)

FAMILY = Family(
    "youtu",
    "YoutuForCausalLM",
    names=latent_names,
    guesses_ahead=True,
    defaults={
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "rope_interleave": True,
    },
    only={"mlp_bias": False},
    kv_heads=latent_kv_heads,
    is_interleaved=flag("rope_interleave"),
    latent=latent_plan,
    attention_scale=latent_scale,
)
