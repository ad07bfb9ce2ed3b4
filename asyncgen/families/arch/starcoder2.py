"""StarCoder 2: norms by layer, a plain feed-forward, biases everywhere."""

from __future__ import annotations

from asyncgen.families.plans.declaration import (
    LAYER,
    LLAMA_NAMES,
    SMALL,
    Family,
    always,
    flag,
    without,
)

FAMILY = Family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    names={**without(LLAMA_NAMES, "gate_up"), "up": "mlp.c_fc", "down": "mlp.c_proj"},
    defaults={
        **SMALL,
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "use_bias": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "tie_word_embeddings": True,
    },
    spellings={"rms_norm_eps": "norm_epsilon"},
    unread=frozenset({"rms_norm_eps"}),
    norm=LAYER,
    has_qkv_bias=flag("use_bias"),
    has_up_bias=flag("use_bias"),
    is_gated=False,
    window=lambda values: values.count_or_none("sliding_window"),
    slides=always(True),
)
