"""Text model of Gemma 4 Unified (12B): Gemma 4's, without experts and rows for each layer."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import gemma4_text
from asyncgen.families.plans.declaration import without

FAMILY = replace(
    gemma4_text.FAMILY,
    model_type="gemma4_unified_text",
    class_name="Gemma4UnifiedForCausalLM",
    defaults={
        **without(
            gemma4_text.FAMILY.defaults, "hidden_size_per_layer_input", "vocab_size_per_layer_input"
        ),
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
    },
    only={"hidden_size_per_layer_input": None, "enable_moe_block": False},
)
