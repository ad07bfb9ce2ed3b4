"""LFM2 with experts, from one layer on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.lfm2 import FAMILY as LFM2_FAMILY
from asyncgen.families.arch.lfm2 import LFM2, LFM2_NAMES
from asyncgen.families.plans.declaration import flag
from asyncgen.families.plans.expert_values import declare_experts, dense_before

if TYPE_CHECKING:
    from asyncgen.families.plans.declaration import Family


FAMILY: Family = replace(
    LFM2_FAMILY,
    model_type="lfm2_moe",
    class_name="Lfm2MoeForCausalLM",
    names={
        **LFM2_NAMES,
        "router": "feed_forward.gate",
        "correction": "feed_forward.expert_bias",
        "experts_gate_up": "feed_forward.experts.*.w1 feed_forward.experts.*.w3",
        "experts_down": "feed_forward.experts.*.w2",
    },
    defaults={
        **LFM2,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "use_expert_bias": True,
    },
    spellings={**LFM2_FAMILY.spellings, "first_k_dense_replace": "num_dense_layers"},
    width=lambda values: values.count("intermediate_size"),
    experts=dense_before(
        declare_experts(
            scoring="sigmoid",
            is_normalised=flag("norm_topk_prob"),
            scale=lambda values: values.positive("routed_scaling_factor", 1.0),
            is_corrected=flag("use_expert_bias"),
        )
    ),
)
