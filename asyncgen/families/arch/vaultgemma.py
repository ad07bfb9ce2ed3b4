"""VaultGemma: Gemma 2 without the norms after each part."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import gemma2
from asyncgen.families.plans.declaration import LLAMA_NAMES

FAMILY = replace(
    gemma2.FAMILY,
    model_type="vaultgemma",
    class_name="VaultGemmaForCausalLM",
    names={**LLAMA_NAMES, "post_norm": "pre_feedforward_layernorm"},
    only={},
)
