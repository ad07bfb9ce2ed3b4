"""Flint: sinks; three of four layers slide, and only those have a rope; a shared expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import Family, always, flag
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts, sparse_steps
from asyncgen.families.plans.layer_plan import HeadNormPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _slides(values: ConfigValues, layer: int) -> bool:
    is_last = layer + 1 == values.count("num_hidden_layers")
    return layer >= 2 and layer % 4 != 1 and not is_last


FAMILY = Family(
    "flint",
    "FlintForCausalLM",
    names={
        **EXPERT_NAMES,
        "sinks": "self_attn.softmax_offset",
        "shared_gate_up": "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj",
        "shared_down": "mlp.shared_expert.down_proj",
    },
    defaults={
        "vocab_size": 150144,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 49,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 1024,
        "num_experts": 256,
        "num_experts_per_tok": 6,
        "norm_topk_prob": True,
        "mlp_only_layers": [0, 1],
    },
    has_rope=lambda values, layer, kind: kind == "sliding_attention",
    head_norm=HeadNormPlan(),
    window=lambda values: values.count("sliding_window"),
    slides=_slides,
    has_layer_types=True,
    has_sinks=always(True),
    experts=sparse_steps(
        declare_experts(
            scoring="sigmoid",
            is_normalised=flag("norm_topk_prob"),
            shared_width=lambda values: values.count("shared_expert_intermediate_size"),
        )
    ),
)
