"""XGLM: sines and cosines that are added for positions, and OPT's block."""

from __future__ import annotations

from asyncgen.families.arch.opt import OPT_LAYER_NAMES
from asyncgen.families.plans.declaration import LAYER, Family

FAMILY = Family(
    "xglm",
    "XGLMForCausalLM",
    names={
        "embed_tokens": "model.embed_tokens",
        "layers": "model.layers",
        "norm": "model.layer_norm",
        "lm_head": "lm_head",
        **OPT_LAYER_NAMES,
    },
    unneeded=(r"embed_positions\.weights$",),
    defaults={
        "vocab_size": 256008,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_position_embeddings": 2048,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-5,
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    spellings={
        "hidden_size": "d_model",
        "intermediate_size": "ffn_dim",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "attention_heads",
        "hidden_act": "activation_function",
    },
    unread=frozenset({"rms_norm_eps", "num_key_value_heads", "head_dim", "hidden_act"}),
    positions="sinusoids",
    position_offset=2,
    norm=LAYER,
    has_qkv_bias=True,
    has_up_bias=True,
    is_gated=False,
    embedding_scale=lambda values: (
        values.count("hidden_size") ** 0.5 if values.flag("scale_embedding") else 1.0
    ),
)
