"""VaultGemma: Gemma 2 without the norms after each part."""

from __future__ import annotations

from asyncgen.families.arch.gemma2 import GEMMA2, GEMMA2_SPELLINGS, score_scale
from asyncgen.families.plans.declaration import LLAMA_NAMES, RMS_PLUS_ONE, Family

FAMILY = Family(
    "vaultgemma",
    "VaultGemmaForCausalLM",
    names={**LLAMA_NAMES, "post_norm": "pre_feedforward_layernorm"},
    defaults=GEMMA2,
    spellings=GEMMA2_SPELLINGS,
    norm=RMS_PLUS_ONE,
    window=lambda values: values.count("sliding_window"),
    slides=lambda values, layer: layer % 2 == 0,
    has_layer_types=True,
    attention_scale=score_scale,
    attention_cap=lambda values: values.positive_or_none("attn_logit_softcapping"),
    embedding_scale=lambda values: values.count("hidden_size") ** 0.5,
    logit_cap=lambda values: values.positive_or_none("final_logit_softcapping"),
)
