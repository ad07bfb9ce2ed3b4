"""IQuest Coder: Llama's layer."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family, flag

FAMILY = Family(
    "iquestcoder",
    "IQuestCoderForCausalLM",
    defaults={
        **SMALL,
        "vocab_size": 76800,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 80,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
    },
    only={"clip_qkv": None, "use_sliding_window": False},
    has_up_bias=flag("mlp_bias"),
)
