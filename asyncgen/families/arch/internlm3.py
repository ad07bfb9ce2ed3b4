"""InternLM 3: Llama's layer; one key of the file switches biases in all of attention."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family, flag

FAMILY = Family(
    "internlm3",
    "InternLM3ForCausalLM",
    defaults={
        **SMALL,
        "vocab_size": 128512,
        "intermediate_size": 10240,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 2,
    },
    spellings={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
    has_output_bias=flag("mlp_bias"),
    has_up_bias=flag("mlp_bias"),
)
