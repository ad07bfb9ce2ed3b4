"""GPT-NeoX and Pythia: parallel parts with a norm each; queries, keys and values by head."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LAYER, SMALL, Family, flag
from asyncgen.families.plans.rope_values import partial_rotary_factor

FAMILY = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    ("GPTNeoXTokenizer", "GPTNeoXTokenizerFast"),
    names={
        "embed_tokens": "gpt_neox.embed_in",
        "layers": "gpt_neox.layers",
        "norm": "gpt_neox.final_layer_norm",
        "lm_head": "embed_out",
        "input_norm": "input_layernorm",
        "qkv": "attention.query_key_value",
        "output": "attention.dense",
        "post_norm": "post_attention_layernorm",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    # Causal masks and angles, which early checkpoints stored with every layer.
    unneeded=(r"\.attention\.(masked_)?bias$",),
    qkv_groups=lambda values: values.count("num_attention_heads"),
    defaults={
        **SMALL,
        "vocab_size": 50432,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "use_parallel_residual": True,
        "attention_bias": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    spellings={
        "rms_norm_eps": "layer_norm_eps",
        "partial_rotary_factor": "rotary_pct",
        "rope_theta": "rotary_emb_base",
    },
    unread=frozenset({"rms_norm_eps", "num_key_value_heads", "head_dim"}),
    partial_rotary_factor=partial_rotary_factor,
    norm=LAYER,
    has_up_bias=True,
    is_gated=False,
    is_parallel=flag("use_parallel_residual"),
)
