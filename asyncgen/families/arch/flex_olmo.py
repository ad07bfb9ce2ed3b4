"""FlexOlmo: OLMo 2's layer with experts."""

from __future__ import annotations

from asyncgen.families.arch.olmo2 import OLMO2_NAMES
from asyncgen.families.plans.declaration import SMALL, Family, flag
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "flex_olmo",
    "FlexOlmoForCausalLM",
    names={
        **OLMO2_NAMES,
        **{key: EXPERT_NAMES[key] for key in ("router", "experts_gate_up", "experts_down")},
    },
    defaults={
        **SMALL,
        "vocab_size": 100352,
        "max_position_embeddings": 4096,
        "rope_theta": 500_000.0,
        "pad_token_id": 100277,
        "bos_token_id": None,
        "eos_token_id": 100257,
        "num_experts": 7,
        "num_experts_per_tok": 5,
    },
    head_norm=HeadNormPlan(span="width"),
    experts=declare_experts(width="intermediate_size", is_normalised=flag("norm_topk_prob")),
)
