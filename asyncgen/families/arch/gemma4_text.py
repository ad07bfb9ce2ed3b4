"""Gemma 4's text model: heads of two sizes, shared keys and values, values that may be the keys.

Each layer has a row of its own for each token, and a factor on its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncgen.families.arch.gemma import GEMMA
from asyncgen.families.arch.gemma2 import GEMMA2_NAMES, GEMMA2_SPELLINGS
from asyncgen.families.plans.config_values import MOST, MOST_LAYERS
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import experts_plan
from asyncgen.families.plans.layer_plan import VariedLayerPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues, Kinds
    from asyncgen.families.plans.experts_plan import ExpertsPlan

LAYER_INPUT_NAMES = {
    "input_gate": "per_layer_input_gate",
    "input_up": "per_layer_projection",
    "taken_norm": "post_per_layer_input_norm",
    "input_table": "model.embed_tokens_per_layer",
    "input_projection": "model.per_layer_model_projection",
    "input_row_norm": "model.per_layer_projection_norm",
}
"""Names of the modules for the rows that layers have of each token beside the stream."""

_SIZES = ("head_dim", "num_key_value_heads")


def _sizes(values: ConfigValues, layer: int, kind: str) -> tuple[int, int]:
    """Read size and number of a layer's key heads, which newer files list by layer."""
    sizes = values.count("head_dim"), values.count("num_key_value_heads")
    listed = values.once("per_layer_config", lambda stated: _by_layer(values, stated))
    if listed is None:
        if kind != "full_attention":
            return sizes
        heads = values.value("num_global_key_value_heads")
        if heads is None or not values.flag("attention_k_eq_v"):
            return values.count("global_head_dim"), sizes[1]
        return values.count("global_head_dim"), values.count("num_global_key_value_heads")
    part = listed.get(layer, {})
    return part.get(_SIZES[0], sizes[0]), part.get(_SIZES[1], sizes[1])


def _by_layer(values: ConfigValues, stated: object) -> Mapping[int, Mapping[str, int]] | None:
    """Read the list of sizes, by numbers of layers."""
    if stated is None:
        return None
    if not isinstance(stated, Mapping):
        raise values.bad("per_layer_config", stated, "must be an object by number of layer")
    layers = range(values.count("num_hidden_layers", most=MOST_LAYERS))
    digits = len(str(len(layers)))  # files pad numbers with zeros, to two places or more
    numbers = {str(n).zfill(places): n for n in layers for places in range(1, max(digits, 2) + 1)}
    listed = {numbers[key]: part for key, part in stated.items() if key in numbers}
    for part in stated.values():
        if len(listed) < len(stated) or not isinstance(part, Mapping) or {*part} - {*_SIZES}:
            allowed = f"must have {' or '.join(_SIZES)} for numbers of layers"
            raise values.bad("per_layer_config", stated, allowed)
        if any(type(size) is not int or not 1 <= size <= MOST for size in part.values()):
            allowed = "sizes are whole numbers of at least 1"
            raise values.bad("per_layer_config", stated, allowed)
    return listed


def source_of(values: ConfigValues, layer: int, kinds: Kinds) -> int | None:
    """Find the layer whose keys and values a layer reads; ``None``: it makes its own.

    The last ``num_kv_shared_layers`` read the last layer of their kind before them.
    """
    shared = values.number("num_kv_shared_layers")
    first = len(kinds) - int(shared)
    if first != len(kinds) - shared or not 0 < first <= len(kinds):
        allowed = f"must be a whole number below the {len(kinds)} layers"
        raise values.bad("num_kv_shared_layers", shared, allowed)
    if layer < first:
        return None
    source = next((each for each in range(first)[::-1] if kinds[each] == kinds[layer]), None)
    if source is None:
        allowed = f"no layer before the {first}th is a {kinds[layer]}, whose keys it could read"
        raise values.bad("num_kv_shared_layers", int(shared), allowed)
    return source


def _varied(values: ConfigValues, layer: int, kinds: Kinds) -> VariedLayerPlan:
    """Read the shape of a layer."""
    if kinds[-1] != "full_attention":
        raise values.bad("layer_types", list(kinds), "the last layer must be full_attention")
    size, kv_heads = _sizes(values, layer, kinds[layer])
    source, table = source_of(values, layer, kinds), _table(values)
    width = values.count("intermediate_size")
    is_wide = values.flag("use_double_wide_mlp") and source is not None
    return VariedLayerPlan(
        head_dim=size,
        kv_heads=kv_heads,
        width=2 * width if is_wide else width,
        values_are_keys=values.flag("attention_k_eq_v") and kinds[layer] == "full_attention",
        keys_of=source,
        input_width=0 if table is None else table[1],
    )


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    """Read the experts beside the feed-forward of each layer."""
    return experts_plan(values, is_normalised=True) if values.flag("enable_moe_block") else None


def _slides(values: ConfigValues, layer: int) -> bool:
    return (layer + 1) % 6 != 0 and layer + 1 != values.count("num_hidden_layers")


def _sees_later(values: ConfigValues) -> bool:
    # Tokens of a picture see each other; those of a text never see later ones.
    values.require("use_bidirectional_attention", "vision")
    return False


def table_of_rows(values: ConfigValues) -> tuple[int, int] | None:
    """Read the rows of the table that layers have rows in, and the features of each layer's row."""
    if values.value("hidden_size_per_layer_input") in (None, 0):
        return None
    return values.count("vocab_size_per_layer_input"), values.count("hidden_size_per_layer_input")


def _table(values: ConfigValues) -> tuple[int, int] | None:
    table, size = table_of_rows(values), values.count("vocab_size")
    if table is not None and table[0] != size:
        allowed = f"must be the vocabulary's, {size}"
        raise values.bad("vocab_size_per_layer_input", table[0], allowed)
    return table


FAMILY = Family(
    "gemma4_text",
    "Gemma4ForCausalLM",
    names={
        **GEMMA2_NAMES,
        **LAYER_INPUT_NAMES,
        "scalar": "layer_scalar",
        "router": "router.proj",
        "router_scale": "router.scale",
        "expert_scale": "router.per_expert_scale",
        "experts_gate_up": "experts.gate_up_proj",
        "experts_down": "experts.down_proj",
        "beside_norm": "post_feedforward_layernorm_1",
        "expert_norm": "pre_feedforward_layernorm_2",
        "experts_norm": "post_feedforward_layernorm_2",
    },
    defaults={
        **GEMMA,
        "vocab_size": 262144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "global_head_dim": 512,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        },
    },
    spellings={**GEMMA2_SPELLINGS, "num_experts_per_tok": "top_k_experts"},
    experts=_experts,
    ropes_by_kind=True,
    varied=_varied,
    layer_inputs=_table,
    window=lambda values: values.count("sliding_window"),
    slides=_slides,
    has_layer_types=True,
    attention_scale=1.0,
    is_bidirectional=_sees_later,
    embedding_scale=lambda values: values.count("hidden_size") ** 0.5,
    scales_rows=True,
    rounds_scale=True,
    logit_cap=lambda values: values.positive_or_none("final_logit_softcapping"),
)
