"""Mistral 4: latent attention with queries that grow with their position; experts by softmax.

Experts come from the best groups, and a shared one stands beside them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch import deepseek_v3
from asyncgen.families.plans.declaration import without
from asyncgen.families.plans.expert_values import dense_before, softmax_best_groups_plan
from asyncgen.families.plans.latent_values import latent_plan
from asyncgen.families.plans.rope_values import partial_rotary_factor

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _rotary_part(values: ConfigValues) -> float:
    """Read the part of a head that rotates, which files say again beside the sizes."""
    plan = latent_plan(values)
    part = partial_rotary_factor(values)
    if part != 1 and int(part * (plan.rope_dim + plan.nope_dim)) != plan.rope_dim:
        allowed = f"qk_rope_head_dim says that {plan.rope_dim} features rotate"
        raise values.bad("partial_rotary_factor", part, allowed)
    return part


FAMILY = replace(
    deepseek_v3.FAMILY,
    model_type="mistral4",
    class_name="Mistral4ForCausalLM",
    guesses_ahead=False,
    defaults={
        **without(deepseek_v3.FAMILY.defaults, "num_nextn_predict_layers"),
        "vocab_size": 131072,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "max_position_embeddings": 1048576,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 11,
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_nope_head_dim": 64,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    only={"scoring_func": "softmax"},
    scales_queries=True,
    partial_rotary_factor=_rotary_part,
    experts=dense_before(softmax_best_groups_plan),
)
