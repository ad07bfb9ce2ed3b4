"""Youtu-LLM: DeepSeek-V3's latent attention without experts."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import deepseek_v3
from asyncgen.families.plans.declaration import always

FAMILY = replace(
    deepseek_v3.FAMILY,
    model_type="youtu",
    class_name="YoutuForCausalLM",
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
    spellings={},
    experts=always(None),
)
