"""BLOOM: ALiBi, normalised embeddings; queries, keys and values by head."""

from __future__ import annotations

from asyncgen.families.plans.attention_options import alibi_slopes
from asyncgen.families.plans.declaration import LAYER, Family

FAMILY = Family(
    "bloom",
    "BloomForCausalLM",
    names={
        "embed_tokens": "transformer.word_embeddings",
        "embed_norm": "transformer.word_embeddings_layernorm",
        "layers": "transformer.h",
        "norm": "transformer.ln_f",
        "lm_head": "lm_head",
        "input_norm": "input_layernorm",
        "qkv": "self_attention.query_key_value",
        "output": "self_attention.dense",
        "post_norm": "post_attention_layernorm",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    qkv_groups=lambda values: values.count("num_attention_heads"),
    defaults={
        "vocab_size": 250880,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    spellings={
        "hidden_size": "n_embed",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    unread=frozenset({"rms_norm_eps", "num_key_value_heads", "head_dim"}),
    only={"apply_residual_connection_post_layernorm": False},
    width=lambda values: 4 * values.count("hidden_size"),
    positions="none",
    norm=LAYER,
    has_qkv_bias=True,
    has_up_bias=True,
    activation="gelu_pytorch_tanh",
    is_gated=False,
    slopes=lambda values: alibi_slopes(values.count("num_attention_heads")),
)
