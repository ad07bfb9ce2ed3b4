"""GLM 4 of 2025 (0414): GLM's block with norms before and after."""

from __future__ import annotations

from asyncgen.families.arch.glm import GLM, GLM_NAMES
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.rope_values import part_that_turns

FAMILY = Family(
    "glm4",
    "Glm4ForCausalLM",
    names={
        **GLM_NAMES,
        "output_norm": "post_self_attn_layernorm",
        "down_norm": "post_mlp_layernorm",
    },
    defaults=GLM,
    turned=part_that_turns,
    is_interleaved=True,
    has_output_bias=False,
)
