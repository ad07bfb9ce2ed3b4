"""Gemma 3's text model: five of six layers slide, with a rope of their own; queries and keys
are normalised per head. EmbeddingGemma is one whose tokens see later ones as well."""

from __future__ import annotations

from asyncgen.families.arch.gemma2 import GEMMA2, GEMMA2_NAMES, GEMMA2_SPELLINGS, score_scale
from asyncgen.families.plans.declaration import RMS_PLUS_ONE, Family, flag, slides_but_every
from asyncgen.families.plans.layer_plan import HeadNormPlan

GEMMA3 = {
    **GEMMA2,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}

FAMILY = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    names=GEMMA2_NAMES,
    defaults=GEMMA3,
    spellings=GEMMA2_SPELLINGS,
    only={"attn_logit_softcapping": None},
    ropes_by_kind=True,
    norm=RMS_PLUS_ONE,
    head_norm=HeadNormPlan(RMS_PLUS_ONE),
    window=lambda values: values.count("sliding_window"),
    slides=slides_but_every("sliding_window_pattern"),
    has_layer_types=True,
    attention_scale=score_scale,
    is_bidirectional=flag("use_bidirectional_attention"),
    embedding_scale=lambda values: values.count("hidden_size") ** 0.5,
    logit_cap=lambda values: values.positive_or_none("final_logit_softcapping"),
)
