"""EXAONE with DeepSeek-V3's experts; if layers slide, only those have a rope."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import exaone4
from asyncgen.families.plans.expert_values import (
    EXPERT_NAMES,
    as_listed,
    dense_before,
    grouped_plan,
)

FAMILY = replace(
    exaone4.FAMILY,
    model_type="exaone_moe",
    class_name="ExaoneMoeForCausalLM",
    names={**EXPERT_NAMES, "correction": "mlp.e_score_correction_bias"},
    # A separate layer that guesses tokens ahead.
    unneeded=(r"^mtp\.",),
    defaults={
        **exaone4.FAMILY.defaults,
        "num_key_value_heads": 32,
        "bos_token_id": 1,
        "pad_token_id": 0,
        "eos_token_id": 53,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    spellings={"n_shared_experts": "num_shared_experts"},
    experts=as_listed(grouped_plan, dense_before(grouped_plan)),
)
