"""GLM 4.5 and 4.6: half of each head rotates; DeepSeek-V3's experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, dense_before, grouped_plan
from asyncgen.families.plans.layer_plan import HeadNormPlan
from asyncgen.families.plans.rope_values import partial_rotary_factor

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _head_norm(values: ConfigValues) -> HeadNormPlan | None:
    return HeadNormPlan() if values.flag("use_qk_norm") else None


FAMILY = Family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    names=EXPERT_NAMES,
    guesses_ahead=True,
    defaults={
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "moe_intermediate_size": 1408,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "norm_topk_prob": True,
    },
    spellings={"num_experts": "n_routed_experts"},
    partial_rotary_factor=partial_rotary_factor,
    head_norm=_head_norm,
    has_output_bias=False,
    experts=dense_before(grouped_plan),
)
