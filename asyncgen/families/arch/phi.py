"""Phi 1, 1.5 and 2: both parts of a layer read one normalised stream; half of a head rotates."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LAYER, LLAMA_NAMES, SMALL, Family, without
from asyncgen.families.plans.layer_plan import HeadNormPlan
from asyncgen.families.plans.rope_values import even_rotary_factor

FAMILY = Family(
    "phi",
    "PhiForCausalLM",
    names={
        **without(LLAMA_NAMES, "post_norm", "gate_up"),
        "norm": "model.final_layernorm",
        "q_norm": "self_attn.q_layernorm",
        "k_norm": "self_attn.k_layernorm",
        "output": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    },
    defaults={
        **SMALL,
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "hidden_act": "gelu_new",
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    },
    spellings={"rms_norm_eps": "layer_norm_eps"},
    unread=frozenset({"rms_norm_eps", "head_dim"}),
    partial_rotary_factor=even_rotary_factor,
    norm=LAYER,
    head_norm=lambda values: HeadNormPlan(LAYER) if values.flag("qk_layernorm") else None,
    has_qkv_bias=True,
    has_up_bias=True,
    is_gated=False,
    is_parallel=True,
    has_head_bias=True,
)
