"""BioGPT: OPT's layer; embeddings scaled by the root of their width."""

from __future__ import annotations

from asyncgen.families.arch.opt import OPT_LAYER_NAMES
from asyncgen.families.plans.declaration import LAYER, Family

FAMILY = Family(
    "biogpt",
    "BioGptForCausalLM",
    names={
        "embed_tokens": "biogpt.embed_tokens",
        "embed_positions": "biogpt.embed_positions",
        "layers": "biogpt.layers",
        "norm": "biogpt.layer_norm",
        "lm_head": "output_projection",
        **OPT_LAYER_NAMES,
    },
    defaults={
        "vocab_size": 42384,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_position_embeddings": 1024,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-5,
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    unread=frozenset({"rms_norm_eps", "num_key_value_heads", "head_dim"}),
    positions="table",
    position_offset=2,
    norm=LAYER,
    has_qkv_bias=True,
    has_up_bias=True,
    is_gated=False,
    embedding_scale=lambda values: (
        values.count("hidden_size") ** 0.5 if values.flag("scale_embedding") else 1.0
    ),
    scales_rows=True,
)
