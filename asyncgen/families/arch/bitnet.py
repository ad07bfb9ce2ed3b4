"""BitNet b1.58: Llama's layer with a norm inside of each part and gates of squared rectifiers."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, Family

FAMILY = Family(
    "bitnet",
    "BitNetForCausalLM",
    names={
        **LLAMA_NAMES,
        "attended_norm": "self_attn.attn_sub_norm",
        "inner_norm": "mlp.ffn_sub_norm",
    },
    defaults={
        "vocab_size": 128256,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 30,
        "num_attention_heads": 20,
        "num_key_value_heads": 5,
        "hidden_act": "relu2",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
)
