"""GLM 4 of 2024 (9B and edge): half of each head rotates, by adjacent features; joined gates."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, Family
from asyncgen.families.plans.rope_values import partial_rotary_factor

GLM = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "pad_token_id": 151329,
    "eos_token_id": [151329, 151336, 151338],
}
GLM_NAMES = {**LLAMA_NAMES, "gate_up": "mlp.gate_up_proj"}

FAMILY = Family(
    "glm",
    "GlmForCausalLM",
    names=GLM_NAMES,
    defaults=GLM,
    partial_rotary_factor=partial_rotary_factor,
    is_interleaved=True,
    has_output_bias=False,
)
