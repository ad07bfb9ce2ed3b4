"""Mamba: no attention and no feed-forward; each layer is a state that the tokens select from."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, always
from asyncgen.families.plans.layer_kinds import STATE, all_of
from asyncgen.families.plans.state_plan import expanded_width, selective_plan

MAMBA_NAMES = {
    "embed_tokens": "backbone.embeddings",
    "layers": "backbone.layers",
    "norm": "backbone.norm_f",
    "lm_head": "lm_head",
    "input_norm": "norm",
    "mixer": "mixer",
}
MAMBA_UNREAD = frozenset(
    {
        "head_dim",
        "max_position_embeddings",
        "num_attention_heads",
        "num_key_value_heads",
        "rms_norm_eps",
    }
)
MAMBA = {
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "num_attention_heads": 1,
    "rms_norm_eps": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""Values of missing keys. One head as wide as the stream stands for the missing heads."""

FAMILY = Family(
    "mamba",
    "MambaForCausalLM",
    names=MAMBA_NAMES,
    defaults=MAMBA,
    spellings={"rms_norm_eps": "layer_norm_epsilon"},
    unread=MAMBA_UNREAD,
    only={"hidden_act": "silu", "time_step_scale": 1.0},
    positions="none",
    width=expanded_width,
    kinds=all_of(STATE),
    mixer=lambda values, layer: selective_plan(values),
    has_qkv_bias=False,
    has_feed_forward=always(False),
)
