"""HyperCLOVA X: Granite's factors; the output of each part may be normalised as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family, flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues


def _names(values: ConfigValues) -> Mapping[str, str]:
    if not values.flag("use_post_norm"):
        return LLAMA_NAMES
    return {**LLAMA_NAMES, "output_norm": "post_norm1", "down_norm": "post_norm2"}


def _scale(values: ConfigValues) -> float | None:
    if values.value("attention_multiplier") is None:
        return None
    return values.positive("attention_multiplier")


FAMILY = Family(
    "hyperclovax",
    "HyperCLOVAXForCausalLM",
    names=_names,
    defaults={
        **SMALL,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "use_post_norm": True,
    },
    has_up_bias=flag("mlp_bias"),
    attention_scale=_scale,
    embedding_scale=lambda values: values.positive("embedding_multiplier"),
    residual_scale=lambda values: values.positive("residual_multiplier"),
    logit_scale=lambda values: values.positive("logits_scaling"),
)
