"""dots.llm1: Qwen 3's attention and DeepSeek-V3's experts."""

from __future__ import annotations

from asyncgen.families.arch.qwen2 import slides
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, dense_before, grouped_plan
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "dots1",
    "Dots1ForCausalLM",
    names=EXPERT_NAMES,
    defaults={
        "vocab_size": 152064,
        "hidden_size": 4608,
        "intermediate_size": 10944,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
        "sliding_window": 4096,
        "max_window_layers": 62,
        "moe_intermediate_size": 1408,
    },
    spellings={"num_experts": "n_routed_experts"},
    head_norm=HeadNormPlan(),
    window=lambda values: values.count_or_none("sliding_window"),
    slides=slides,
    has_layer_types=True,
    experts=dense_before(grouped_plan),
)
