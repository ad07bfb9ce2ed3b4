"""GLM 4 of 2025 (0414): GLM's layer with norms before and after."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import glm

FAMILY = replace(
    glm.FAMILY,
    model_type="glm4",
    class_name="Glm4ForCausalLM",
    names={
        **glm.GLM_NAMES,
        "output_norm": "post_self_attn_layernorm",
        "down_norm": "post_mlp_layernorm",
    },
)
