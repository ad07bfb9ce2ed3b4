"""Qwen3-Next: three of four layers keep a state by the gated delta rule, the fourth attends."""

from __future__ import annotations

from asyncgen.families.plans.declaration import RMS_PLUS_ONE, Family, flag
from asyncgen.families.plans.delta_plan import delta_plan
from asyncgen.families.plans.expert_values import EXPERT_NAMES, declare_experts, sparse_steps
from asyncgen.families.plans.layer_kinds import full_every, listed
from asyncgen.families.plans.layer_plan import HeadNormPlan
from asyncgen.families.plans.rope_values import partial_rotary_factor

DELTA_NAMES = {
    **EXPERT_NAMES,
    "mixer": "linear_attn",
    "shared_gate_up": "mlp.shared_expert.gate_proj mlp.shared_expert.up_proj",
    "shared_down": "mlp.shared_expert.down_proj",
    "shared_gate": "mlp.shared_expert_gate",
}
QWEN3_NEXT = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
}


SHARED = {
    "shared_width": lambda values: values.count("shared_expert_intermediate_size"),
    "is_shared_gated": True,
}
"""Options of an expert beside the others, behind a gate."""

FAMILY = Family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    names=DELTA_NAMES,
    unneeded=(r"^mtp\.",),
    defaults=QWEN3_NEXT,
    only={"hidden_act": "silu"},
    kinds=listed(full_every("full_attention_interval")),
    mixer=lambda values, layer: delta_plan(values, "joined"),
    partial_rotary_factor=partial_rotary_factor,
    norm=RMS_PLUS_ONE,
    head_norm=HeadNormPlan(RMS_PLUS_ONE),
    gates_in_queries=True,
    experts=sparse_steps(declare_experts(**SHARED, is_normalised=flag("norm_topk_prob"))),
)
