"""Jais 2: Llama's layer with norms by layer, squared rectifiers and biases."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LAYER, LLAMA_NAMES, SMALL, Family, flag, without

FAMILY = Family(
    "jais2",
    "Jais2ForCausalLM",
    names={**without(LLAMA_NAMES, "gate_up"), "up": "mlp.up_proj"},
    defaults={
        **SMALL,
        "vocab_size": 150272,
        "hidden_size": 3328,
        "intermediate_size": 26624,
        "num_attention_heads": 26,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "mlp_bias": True,
        "bos_token_id": 0,
        "eos_token_id": 150024,
    },
    spellings={"rms_norm_eps": "layer_norm_eps"},
    unread=frozenset({"rms_norm_eps"}),
    norm=LAYER,
    has_up_bias=flag("mlp_bias"),
    is_gated=False,
)
