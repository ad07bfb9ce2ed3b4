"""Gemma 3n's text model: several streams, branches of low rank, sparse gates, shared keys.

Layers share keys and values, and each has a row of its own for each token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.gemma2 import GEMMA2_NAMES, GEMMA2_SPELLINGS
from asyncgen.families.arch.gemma3_text import GEMMA3
from asyncgen.families.arch.gemma4_text import LAYER_INPUT_NAMES, source_of, table_of_rows
from asyncgen.families.plans.config_values import MOST
from asyncgen.families.plans.declaration import Family, without
from asyncgen.families.plans.layer_plan import VariedLayerPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.families.plans.config_values import ConfigValues, Kinds

_DENSE_AFTER = 10
"""Number of sparse layers if the file does not say it, in a model that has more."""


def _widths(values: ConfigValues, count: int) -> Sequence[int]:
    """Read the width of each feed-forward: one for all, or a list."""
    key = "intermediate_size"
    if not isinstance(values.value(key), (list, tuple)):
        return (values.count(key),) * count

    def is_width(one: object) -> bool:
        return type(one) is int and 1 <= one <= MOST

    return values.listed(key, count, is_width, "whole numbers of at least 1") or ()


def _sparsity(values: ConfigValues, layer: int, count: int) -> float:
    """Read the part of a layer's gates that is set to zero."""

    def is_part(one: object) -> bool:
        return isinstance(one, (int, float)) and type(one) is not bool and 0 <= one < 1

    key, each = "activation_sparsity_pattern", "a number from 0 to below 1"
    stated = values.listed(key, count, is_part, each)
    if stated is not None:
        return float(stated[layer])
    return 0.95 if layer < _DENSE_AFTER < count else 0.0


def _varied(values: ConfigValues, layer: int, kinds: Kinds) -> VariedLayerPlan:
    """Read the shape of a layer."""
    table = table_of_rows(values)
    if table is None:
        raise values.bad("hidden_size_per_layer_input", 0, "must be above 0")
    return VariedLayerPlan(
        head_dim=values.count("head_dim"),
        kv_heads=values.count("num_key_value_heads"),
        width=_widths(values, len(kinds))[layer],
        keys_of=source_of(values, layer, kinds),
        input_width=table[1],
        has_scalar=False,
        sparsity=_sparsity(values, layer, len(kinds)),
        laurel_rank=values.count("laurel_rank"),
        scales_output=values.flag("altup_correct_scale"),
    )


FAMILY = Family(
    "gemma3n_text",
    "Gemma3nForCausalLM",
    names={
        **GEMMA2_NAMES,
        **LAYER_INPUT_NAMES,
        "modality_norm": "altup.router_norm",
        "modality": "altup.modality_router",
        "predict": "altup.prediction_coefs",
        "correct": "altup.correction_coefs",
        "output_scale": "altup.correct_output_scale",
        "laurel_left": "laurel.linear_left",
        "laurel_right": "laurel.linear_right",
        "laurel_norm": "laurel.post_laurel_norm",
        "spread": "model.altup_projections",
        "gather": "model.altup_unembed_projections",
    },
    defaults={
        **without(GEMMA3, "query_pre_attn_scalar", "attn_logit_softcapping"),
        "vocab_size": 262400,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 35,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "num_kv_shared_layers": 15,
        "altup_num_inputs": 4,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 64,
    },
    spellings=GEMMA2_SPELLINGS,
    only={"altup_active_idx": 0},
    ropes_by_kind=True,
    varied=_varied,
    layer_inputs=table_of_rows,
    streams=lambda values: values.count("altup_num_inputs", most=64),
    width=lambda values: max(_widths(values, values.count("num_hidden_layers"))),
    window=lambda values: values.count("sliding_window"),
    slides=lambda values, layer: (layer + 1) % 5 != 0,
    has_layer_types=True,
    attention_scale=1.0,
    embedding_scale=lambda values: values.count("hidden_size") ** 0.5,
    scales_rows=True,
    rounds_scale=True,
    logit_cap=lambda values: values.positive_or_none("final_logit_softcapping"),
)
