"""Cohere's Command R7B and A: three of four layers slide, and those alone turn."""

from __future__ import annotations

from asyncgen.families.arch.cohere import COHERE, COHERE_NAMES, COHERE_SPELLINGS, WITHOUT_BIAS
from asyncgen.families.plans.declaration import Family, slides_but_every

FAMILY = Family(
    "cohere2",
    "Cohere2ForCausalLM",
    names=COHERE_NAMES,
    defaults={
        **COHERE,
        "rope_theta": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    spellings=COHERE_SPELLINGS,
    unread=frozenset({"rms_norm_eps"}),
    is_interleaved=True,
    has_rope=lambda values, layer, kind: kind == "sliding_attention",
    norm=WITHOUT_BIAS,
    is_parallel=True,
    window=lambda values: values.count("sliding_window"),
    slides=slides_but_every("sliding_window_pattern"),
    has_layer_types=True,
    logit_scale=lambda values: values.positive("logit_scale"),
)
