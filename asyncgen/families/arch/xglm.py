"""XGLM: positions as sines and cosines that are added, and OPT's layer."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import biogpt
from asyncgen.families.arch.opt import OPT_LAYER_NAMES

FAMILY = replace(
    biogpt.FAMILY,
    model_type="xglm",
    class_name="XGLMForCausalLM",
    names={
        "embed_tokens": "model.embed_tokens",
        "layers": "model.layers",
        "norm": "model.layer_norm",
        "lm_head": "lm_head",
        **OPT_LAYER_NAMES,
    },
    unneeded=(r"embed_positions\.weights$",),
    defaults={**biogpt.FAMILY.defaults, "vocab_size": 256008, "max_position_embeddings": 2048},
    spellings={
        "hidden_size": "d_model",
        "intermediate_size": "ffn_dim",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "attention_heads",
        "hidden_act": "activation_function",
    },
    unread=biogpt.FAMILY.unread | {"hidden_act"},
    positions="sinusoids",
)
