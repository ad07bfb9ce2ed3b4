"""DiffLlama: Llama with differential attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _rotary_part(values: ConfigValues) -> float:
    """Rotate all of a query, which is half of what the cache holds."""
    for key in ("rope_parameters", "rope_scaling"):
        stated = values.value(key)
        if isinstance(stated, Mapping) and stated.get("partial_rotary_factor") not in (
            None,
            1,
            1.0,
        ):
            part = stated["partial_rotary_factor"]
            raise values.bad(f"{key}.partial_rotary_factor", part, "only whole heads are rotated")
    values.require("partial_rotary_factor", 1, 1.0)
    return 0.5


def _kv_heads(values: ConfigValues) -> int:
    heads = values.kv_heads(values.count("num_attention_heads"))
    if heads % 2:
        raise values.bad("num_key_value_heads", heads, "must be even: values are in pairs")
    return heads


FAMILY = Family(
    "diffllama",
    "DiffLlamaForCausalLM",
    names={**LLAMA_NAMES, "lambdas": "self_attn"},
    defaults={
        **SMALL,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "rms_norm_eps": 1e-5,
    },
    kv_heads=_kv_heads,
    is_differential=True,
    partial_rotary_factor=_rotary_part,
    attention_scale=lambda values: (
        values.head_dim(
            values.count("hidden_size"), values.count("num_attention_heads"), is_rotary=True
        )
        ** -0.5
    ),
)
