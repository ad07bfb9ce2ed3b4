"""OLMoE: Llama's layer with experts; all heads of a token are normalised together."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family, flag
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "olmoe",
    "OlmoeForCausalLM",
    names=EXPERT_NAMES,
    defaults={
        **SMALL,
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": None,
        "eos_token_id": 50279,
        "num_experts": 64,
        "num_experts_per_tok": 8,
    },
    only={"clip_qkv": None},
    head_norm=HeadNormPlan(span="width"),
    experts=declare_experts(width="intermediate_size", is_normalised=flag("norm_topk_prob")),
)
