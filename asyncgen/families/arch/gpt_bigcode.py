"""StarCoder 1 and SantaCoder: GPT-2 with one head of keys and values for all queries."""

from __future__ import annotations

from asyncgen.families.arch.gpt2 import (
    GPT2_DEFAULTS,
    GPT2_NAMES,
    GPT2_SPELLINGS,
    GPT2_UNREAD,
    four_times,
)
from asyncgen.families.plans.declaration import LAYER, Family

FAMILY = Family(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    names=GPT2_NAMES,
    # Causal masks, which early checkpoints stored with every layer.
    unneeded=(r"\.attn\.(masked_)?bias$",),
    qkv_groups=lambda values: (
        1 if values.flag("multi_query") else values.count("num_attention_heads")
    ),
    defaults={**GPT2_DEFAULTS, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
    spellings=GPT2_SPELLINGS,
    unread=GPT2_UNREAD,
    kv_heads=lambda values: (
        1 if values.flag("multi_query") else values.count("num_attention_heads")
    ),
    width=four_times,
    positions="table",
    norm=LAYER,
    has_qkv_bias=True,
    has_up_bias=True,
    is_gated=False,
    attention_scale=lambda values: None if values.flag("scale_attn_weights") else 1.0,
)
