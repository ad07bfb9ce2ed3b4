"""gpt-oss: attention sinks, windows in every other layer, clamped experts with biases."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, Family, always
from asyncgen.families.plans.expert_values import declare_experts
from asyncgen.families.plans.experts_plan import GatePlan

FAMILY = Family(
    "gpt_oss",
    "GptOssForCausalLM",
    names={
        **LLAMA_NAMES,
        "sinks": "self_attn.sinks",
        "router": "mlp.router",
        "experts_gate_up": "mlp.experts.gate_up_proj",
        "experts_down": "mlp.experts.down_proj",
    },
    defaults={
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "sliding_window": 128,
        "attention_bias": True,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    spellings={"num_experts": "num_local_experts"},
    window=lambda values: values.count("sliding_window"),
    slides=lambda values, layer: layer % 2 == 0,
    has_layer_types=True,
    has_sinks=always(True),
    experts=declare_experts(
        width="intermediate_size",
        is_normalised=True,
        gate=lambda values: GatePlan(
            "clamped", values.positive("swiglu_alpha"), values.positive("swiglu_limit")
        ),
        has_bias=True,
        has_router_bias=True,
        takes_turns=True,
        is_transposed=True,
    ),
)
