"""EXAONE with experts: DeepSeek-V3's; where layers slide, those alone turn."""

from __future__ import annotations

from asyncgen.families.arch.exaone4 import slides
from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.expert_values import (
    EXPERT_NAMES,
    as_listed,
    dense_before,
    grouped_plan,
)
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "exaone_moe",
    "ExaoneMoeForCausalLM",
    names={**EXPERT_NAMES, "correction": "mlp.e_score_correction_bias"},
    # A layer of its own that guesses tokens ahead.
    unneeded=(r"^mtp\.",),
    defaults={
        **SMALL,
        "vocab_size": 102400,
        "intermediate_size": 16384,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 0,
        "eos_token_id": 53,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    spellings={"n_shared_experts": "num_shared_experts"},
    has_rope=lambda values, layer, kind: (
        values.count_or_none("sliding_window") is None or kind == "sliding_attention"
    ),
    has_qkv_bias=False,
    head_norm=HeadNormPlan(),
    window=lambda values: values.count_or_none("sliding_window"),
    slides=slides,
    has_layer_types=True,
    experts=as_listed(grouped_plan, dense_before(grouped_plan)),
)
