"""Persimmon: norms by layer, also of heads; squared rectifiers; half of each head rotates."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LAYER, LLAMA_NAMES, SMALL, Family, without
from asyncgen.families.plans.layer_plan import HeadNormPlan
from asyncgen.families.plans.rope_values import even_rotary_factor

FAMILY = Family(
    "persimmon",
    "PersimmonForCausalLM",
    names={
        **without(LLAMA_NAMES, "gate_up"),
        "norm": "model.final_layernorm",
        "qkv": "self_attn.query_key_value",
        "q_norm": "self_attn.q_layernorm",
        "k_norm": "self_attn.k_layernorm",
        "output": "self_attn.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    qkv_groups=lambda values: values.count("num_attention_heads"),
    defaults={
        **SMALL,
        "vocab_size": 262144,
        "intermediate_size": 16384,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "max_position_embeddings": 16384,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
    },
    spellings={"rms_norm_eps": "layer_norm_eps"},
    unread=frozenset({"rms_norm_eps", "num_key_value_heads", "head_dim"}),
    partial_rotary_factor=even_rotary_factor,
    norm=LAYER,
    head_norm=lambda values: HeadNormPlan(LAYER) if values.flag("qk_layernorm") else None,
    has_qkv_bias=True,
    has_up_bias=True,
    is_gated=False,
)
