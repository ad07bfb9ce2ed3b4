"""Granite 3: Llama's layer with factors on embeddings, scores, residuals and logits."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family, flag

GRANITE = {
    **SMALL,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}

FAMILY = Family(
    "granite",
    "GraniteForCausalLM",
    defaults=GRANITE,
    has_up_bias=flag("mlp_bias"),
    attention_scale=lambda values: values.positive_or_none("attention_multiplier"),
    embedding_scale=lambda values: values.positive("embedding_multiplier"),
    residual_scale=lambda values: values.positive("residual_multiplier"),
    logit_scale=lambda values: 1 / values.positive("logits_scaling"),
)
