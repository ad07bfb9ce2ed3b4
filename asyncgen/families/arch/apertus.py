"""Apertus: a plain feed-forward whose activation has a learned shape."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family, without
from asyncgen.families.plans.layer_plan import HeadNormPlan

FAMILY = Family(
    "apertus",
    "ApertusForCausalLM",
    names={
        **without(LLAMA_NAMES, "gate_up"),
        "input_norm": "attention_layernorm",
        "post_norm": "feedforward_layernorm",
        "up": "mlp.up_proj",
        "shape": "mlp.act_fn",
    },
    defaults={
        **SMALL,
        "vocab_size": 131072,
        "intermediate_size": 14336,
        "max_position_embeddings": 65536,
        "hidden_act": "xielu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 12_000_000.0,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        "pad_token_id": 3,
    },
    head_norm=HeadNormPlan(),
    activation=lambda values: values.choice("hidden_act", ("xielu",), "xielu"),
    is_gated=False,
)
