"""Gemma 2: norms before and after, every second layer slides, scores and logits are capped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.gemma import GEMMA
from asyncgen.families.plans.declaration import LLAMA_NAMES, RMS_PLUS_ONE, Family

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

GEMMA2_NAMES = {
    **LLAMA_NAMES,
    "output_norm": "post_attention_layernorm",
    "post_norm": "pre_feedforward_layernorm",
    "down_norm": "post_feedforward_layernorm",
}
GEMMA2 = {
    **GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
GEMMA2_SPELLINGS = {"hidden_act": "hidden_activation"}


def score_scale(values: ConfigValues) -> float:
    """Compute the factor on the scores: one over the root of ``query_pre_attn_scalar``."""
    return values.positive("query_pre_attn_scalar") ** -0.5


FAMILY = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    names=GEMMA2_NAMES,
    defaults=GEMMA2,
    spellings=GEMMA2_SPELLINGS,
    only={"use_bidirectional_attention": False},
    norm=RMS_PLUS_ONE,
    window=lambda values: values.count("sliding_window"),
    slides=lambda values, layer: layer % 2 == 0,
    has_layer_types=True,
    attention_scale=score_scale,
    attention_cap=lambda values: values.positive_or_none("attn_logit_softcapping"),
    embedding_scale=lambda values: values.count("hidden_size") ** 0.5,
    scales_rows=True,
    rounds_scale=True,
    logit_cap=lambda values: values.positive_or_none("final_logit_softcapping"),
)
