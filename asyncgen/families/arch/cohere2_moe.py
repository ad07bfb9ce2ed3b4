"""Cohere with experts: parallel parts; sliding layers have a rope, and dense ones may."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.cohere import COHERE, WITHOUT_BIAS
from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import RMS, Family, without
from asyncgen.families.plans.expert_values import (
    EXPERT_NAMES,
    as_listed,
    dense_before,
    experts_plan,
)
from asyncgen.families.plans.experts_plan import MOST_EXPERTS

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.experts_plan import ExpertsPlan
    from asyncgen.families.plans.layer_plan import NormPlan


def _norm(values: ConfigValues) -> NormPlan:
    return WITHOUT_BIAS if values.value("rms_norm_eps") is None else RMS


def _epsilon(values: ConfigValues) -> float:
    return values.positive("layer_norm_eps" if _norm(values) is WITHOUT_BIAS else "rms_norm_eps")


def _width(values: ConfigValues) -> int:
    return values.count("prefix_dense_intermediate_size", default=values.count("intermediate_size"))


def _slides(values: ConfigValues, layer: int) -> bool:
    key = "first_k_dense_replace"
    dense = 0 if values.value(key) in (None, 0) else values.count(key, most=MOST_LAYERS)
    if layer < dense:
        return (layer + 1) % values.count("prefix_dense_sliding_window_pattern") != 0
    return (layer - dense + 1) % values.count("sliding_window_pattern") != 0


def _plan(values: ConfigValues) -> ExpertsPlan:
    scoring = values.choice("expert_selection_fn", ("softmax", "sigmoid"), "softmax")
    is_normalised = scoring == "softmax" or values.flag("norm_topk_prob")
    plan = experts_plan(
        values, width="intermediate_size", scoring=scoring, is_normalised=is_normalised
    )
    key = "num_shared_experts"
    if values.value(key) in (None, 0):
        return plan
    ways = ("average", "sum")
    is_mean = values.choice("shared_expert_combination_strategy", ways, "average") == "average"
    width = values.count(key, most=MOST_EXPERTS) * plan.width
    return replace(plan, shared_width=width, scale=0.5 if is_mean else 1.0)


_experts = as_listed(_plan, dense_before(_plan))


def _has_rope(values: ConfigValues, layer: int, kind: str) -> bool:
    # If no dense layer slides, all of them have a rope.
    is_dense = _experts(values, layer) is None
    turns = is_dense and values.count("prefix_dense_sliding_window_pattern") == 1
    return turns or kind == "sliding_attention"


FAMILY = Family(
    "cohere2_moe",
    "Cohere2MoeForCausalLM",
    names=without(EXPERT_NAMES, "post_norm"),
    defaults={
        **COHERE,
        "rms_norm_eps": None,
        "layer_norm_eps": 1e-5,
        "head_dim": 128,
        "rope_theta": 10_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "prefix_dense_sliding_window_pattern": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    width=_width,
    is_interleaved=True,
    has_rope=_has_rope,
    norm=_norm,
    epsilon=_epsilon,
    is_parallel=True,
    window=lambda values: values.count_or_none("sliding_window"),
    slides=_slides,
    has_layer_types=True,
    logit_scale=lambda values: values.positive("logit_scale"),
    experts=_experts,
)
