"""Granite with sinks in all layers; three of four slide; each may have its own theta."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.granite import FAMILY as GRANITE_FAMILY
from asyncgen.families.arch.granite import GRANITE
from asyncgen.families.plans.declaration import LLAMA_NAMES, always

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.declaration import Family

_MOST = 1e30
"""The largest theta."""


def layer_theta(values: ConfigValues, layer: int) -> float | None:
    """Read the theta of a layer; 0: it does not rotate; ``None``: it is that of the model."""

    def is_theta(one: object) -> bool:
        return isinstance(one, (int, float)) and type(one) is not bool and 0 <= one <= _MOST

    layers = values.count("num_hidden_layers")
    stated = values.listed("layer_rope_theta", layers, is_theta, f"a number from 0 to {_MOST:g}")
    return None if stated is None else float(stated[layer])


FAMILY: Family = replace(
    GRANITE_FAMILY,
    model_type="granite_swa",
    class_name="GraniteSWAForCausalLM",
    names={**LLAMA_NAMES, "sinks": "self_attn.sinks"},
    defaults={
        **GRANITE,
        "vocab_size": 100352,
        "hidden_size": 2560,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 100257,
        "eos_token_id": 100257,
        "tie_word_embeddings": True,
        "sliding_window": 128,
    },
    has_rope=lambda values, layer, kind: layer_theta(values, layer) != 0,
    layer_theta=layer_theta,
    window=lambda values: values.count_or_none("sliding_window"),
    slides=lambda values, layer: layer % 4 != 0,
    has_layer_types=True,
    has_sinks=always(True),
)
