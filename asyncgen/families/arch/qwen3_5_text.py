"""Qwen 3.5's text model: Qwen3-Next with a plain feed-forward, and a matrix for each part."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch.qwen3_next import DELTA_NAMES, QWEN3_NEXT
from asyncgen.families.arch.qwen3_next import FAMILY as QWEN3_NEXT_FAMILY
from asyncgen.families.plans.declaration import Family, always, without
from asyncgen.families.plans.delta_plan import delta_plan

QWEN3_5 = without(QWEN3_NEXT, "norm_topk_prob")

FAMILY: Family = replace(
    QWEN3_NEXT_FAMILY,
    model_type="qwen3_5_text",
    class_name="Qwen3_5ForCausalLM",
    names=DELTA_NAMES,
    defaults={
        **QWEN3_5,
        "vocab_size": 248320,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
    },
    mixer=lambda values, layer: delta_plan(values),
    experts=always(None),
)
