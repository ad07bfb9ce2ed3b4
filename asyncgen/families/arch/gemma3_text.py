"""Gemma 3's text model: five of six layers slide, with their own rope; norms of queries and keys.

EmbeddingGemma is one whose tokens also see later ones.
"""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import gemma2
from asyncgen.families.plans.declaration import RMS_PLUS_ONE, flag, slides_but_every
from asyncgen.families.plans.layer_plan import HeadNormPlan

GEMMA3 = {
    **gemma2.GEMMA2,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}

FAMILY = replace(
    gemma2.FAMILY,
    model_type="gemma3_text",
    class_name="Gemma3ForCausalLM",
    defaults=GEMMA3,
    only={"attn_logit_softcapping": None},
    ropes_by_kind=True,
    head_norm=HeadNormPlan(RMS_PLUS_ONE),
    slides=slides_but_every("sliding_window_pattern"),
    attention_cap=None,
    is_bidirectional=flag("use_bidirectional_attention"),
)
