"""Cohere's Command R7B and A: three of four layers slide, and only those have a rope."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import cohere
from asyncgen.families.plans.declaration import slides_but_every

FAMILY = replace(
    cohere.FAMILY,
    model_type="cohere2",
    class_name="Cohere2ForCausalLM",
    tokenizer_names=(),
    defaults={
        **cohere.COHERE,
        "rope_theta": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    has_rope=lambda values, layer, kind: kind == "sliding_attention",
    head_norm=None,
    window=lambda values: values.count("sliding_window"),
    slides=slides_but_every("sliding_window_pattern"),
    has_layer_types=True,
)
