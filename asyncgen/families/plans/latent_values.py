"""Read latent attention from a file's values. This module imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_HEADS, number
from asyncgen.families.plans.declaration import without
from asyncgen.families.plans.expert_values import EXPERT_NAMES
from asyncgen.families.plans.layer_plan import LatentPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def latent_plan(values: ConfigValues) -> LatentPlan:
    """Read the ranks and the sizes of heads."""
    plan = LatentPlan(
        rank=values.count("kv_lora_rank"),
        query_rank=values.count_or_none("q_lora_rank"),
        rope_dim=values.count("qk_rope_head_dim"),
        nope_dim=values.count("qk_nope_head_dim"),
        values=values.count("v_head_dim"),
    )
    for key, size in (("qk_rope_head_dim", plan.rope_dim), ("qk_nope_head_dim", plan.nope_dim)):
        if size % 2:
            raise values.bad(key, size, "must be even: a head is two halves")
    return plan


def latent_kv_heads(values: ConfigValues) -> int:
    """Read the key and value heads: as many as query heads, since each has keys of its own."""
    heads = values.count("num_attention_heads", most=MOST_HEADS)
    stated = values.kv_heads(heads)
    if stated != heads:
        allowed = f"latent attention has keys for each of the {heads} query heads"
        raise values.bad("num_key_value_heads", stated, allowed)
    return heads


def latent_names(values: ConfigValues) -> Mapping[str, str]:
    """Give DeepSeek's names of modules, with latent rows for queries or without."""
    names = {
        **without(EXPERT_NAMES, "qkv", "q_norm", "k_norm"),
        "latents": "self_attn.kv_a_proj_with_mqa",
        "latent_norm": "self_attn.kv_a_layernorm",
        "keys_values": "self_attn.kv_b_proj",
        "queries": "self_attn.q_proj",
    }
    if values.count_or_none("q_lora_rank") is not None:
        names["latents"] = f"self_attn.q_a_proj {names['latents']}"
        names["query_norm"] = "self_attn.q_a_layernorm"
        names["queries"] = "self_attn.q_b_proj"
    return names


def latent_scale(values: ConfigValues) -> float:
    """Compute the factor on the scores: that of a key's size, and the square of a stretched rope's.

    DeepSeek multiplies queries and keys by a temperature if a rope is stretched; the weight that
    ``mscale_all_dim`` gives it applies to all features, rotated or not, and so to the score.
    """
    plan = latent_plan(values)
    scale = (plan.rope_dim + plan.nope_dim) ** -0.5
    stated = values.value("rope_scaling") or values.value("rope_parameters")
    if not isinstance(stated, Mapping):
        return scale  # refused later, with the rope itself
    weight, factor = number(stated, "mscale_all_dim", 0.0), number(stated, "factor", 1.0)
    is_plain = stated.get("rope_type", stated.get("type", "default")) == "default"
    if is_plain or not weight or factor <= 1:
        return scale
    return scale * (0.1 * weight * math.log(factor) + 1.0) ** 2
