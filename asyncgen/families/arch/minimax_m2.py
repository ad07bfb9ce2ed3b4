"""MiniMax M2: parts of heads rotate, one norm over all heads of a token; experts by a sigmoid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import MIXTRAL_NAMES, declare_experts
from asyncgen.families.plans.layer_plan import HeadNormPlan
from asyncgen.families.plans.rope_config import part_of_head
from asyncgen.families.plans.rope_values import partial_rotary_factor

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def rotary_part(values: ConfigValues) -> float:
    """Read the part of a head that rotates, which files give in features or as a part."""
    if values.value("rotary_dim") is None:
        return partial_rotary_factor(values)
    return features_part(values)


def features_part(values: ConfigValues) -> float:
    """Read the part of a head that rotates, from a number of features."""
    size = values.count("head_dim")
    features = values.count("rotary_dim")
    if features > size or features % 2:
        raise values.bad("rotary_dim", features, f"must be even and at most head_dim ({size})")
    return part_of_head(features, size)


def _layers(values: ConfigValues) -> int:
    count, key = values.count("num_hidden_layers", most=MOST_LAYERS), "attn_type_list"
    allowed = "1 (linear attention, 0, is not supported)"
    values.listed(key, count, lambda one: type(one) is int and one == 1, allowed)
    return count


FAMILY = Family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    names={**MIXTRAL_NAMES, "correction": "block_sparse_moe.e_score_correction_bias"},
    defaults={
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 196608,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5_000_000.0,
        "bos_token_id": 200034,
        "eos_token_id": 200020,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
    spellings={"num_experts": "num_local_experts"},
    only={
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "shared_intermediate_size": 0,
    },
    layers=_layers,
    partial_rotary_factor=rotary_part,
    has_qkv_bias=False,
    head_norm=HeadNormPlan(span="width"),
    experts=declare_experts(
        width="intermediate_size", scoring="sigmoid", is_normalised=True, is_corrected=True
    ),
)
