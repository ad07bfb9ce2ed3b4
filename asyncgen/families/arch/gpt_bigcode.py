"""StarCoder 1 and SantaCoder: GPT-2 with one head of keys and values for all queries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch import gpt2

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _kv_heads(values: ConfigValues) -> int:
    return 1 if values.flag("multi_query") else values.count("num_attention_heads")


FAMILY = replace(
    gpt2.FAMILY,
    model_type="gpt_bigcode",
    class_name="GPTBigCodeForCausalLM",
    tokenizer_names=(),
    is_transposed=False,
    qkv_groups=_kv_heads,
    defaults={**gpt2.GPT2_DEFAULTS, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
    kv_heads=_kv_heads,
    attention_scale=lambda values: None if values.flag("scale_attn_weights") else 1.0,
    has_token_types=False,
)
