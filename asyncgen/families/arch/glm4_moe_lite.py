"""GLM 4.7 Flash: DeepSeek-V3 in other sizes; a list says which layers have experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch import deepseek_v3
from asyncgen.families.plans.declaration import without
from asyncgen.families.plans.expert_values import as_listed, grouped_plan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.experts_plan import ExpertsPlan


def _after_the_first(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    values.require("first_k_dense_replace", 1)
    return grouped_plan(values) if layer else None


FAMILY = replace(
    deepseek_v3.FAMILY,
    model_type="glm4_moe_lite",
    class_name="Glm4MoeLiteForCausalLM",
    defaults={
        **without(deepseek_v3.FAMILY.defaults, "n_group", "topk_group", "first_k_dense_replace"),
        "vocab_size": 154880,
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "moe_intermediate_size": 1536,
        "num_experts": 64,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.8,
    },
    experts=as_listed(grouped_plan, _after_the_first),
)
