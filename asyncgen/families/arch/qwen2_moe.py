"""Qwen 1.5 and 2 with experts, and a gated shared one that every token passes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.qwen2 import window
from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts, sparse_steps

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _slides(values: ConfigValues, layer: int) -> bool:
    # Unlike in the dense models, every second one of the first layers slides.
    first = values.count("max_window_layers") if values.value("max_window_layers") != 0 else 0
    return layer % 2 == 0 and layer < first


FAMILY = Family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    names={
        **EXPERT_NAMES,
        "shared_gate_up": "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj",
        "shared_down": "mlp.shared_expert.down_proj",
        "shared_gate": "mlp.shared_expert_gate",
    },
    defaults={
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "qkv_bias": True,
    },
    has_qkv_bias=flag("qkv_bias"),
    has_output_bias=False,
    window=window,
    slides=_slides,
    has_layer_types=True,
    experts=sparse_steps(
        declare_experts(
            is_normalised=flag("norm_topk_prob"),
            shared_width=lambda values: values.count("shared_expert_intermediate_size"),
            is_shared_gated=True,
        )
    ),
)
