"""Hunyuan's dense models: queries and keys are normalised per head after rotation."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    names={
        **LLAMA_NAMES,
        "q_norm": "self_attn.query_layernorm",
        "k_norm": "self_attn.key_layernorm",
    },
    defaults={**SMALL, "vocab_size": 290943, "rms_norm_eps": 1e-5, "pad_token_id": 0},
    has_rope_alpha=True,
    head_norm=HeadNormPlan(is_after_rope=True),
)
