"""Kimi Linear: Kimi Delta Attention in three of four layers, latent attention in the others.

Latent attention has no rope here; from one layer on there are experts by sigmoid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.delta_plan import MOST_WINDOW, DeltaPlan
from asyncgen.families.plans.expert_values import as_listed, dense_before, grouped_plan
from asyncgen.families.plans.latent_values import latent_kv_heads, latent_names, latent_plan
from asyncgen.families.plans.layer_kinds import FULL, STATE, listed, num_layers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues, Kinds

_FEED = "block_sparse_moe"
_STATED = (("full_attn_layers", FULL), ("kda_layers", STATE))


def _names(values: ConfigValues) -> Mapping[str, str]:
    names = {key: name.replace("mlp.", f"{_FEED}.") for key, name in latent_names(values).items()}
    return {
        **names,
        "mixer": "self_attn",
        "experts_gate_up": f"{_FEED}.experts.*.w1 {_FEED}.experts.*.w3",
        "experts_down": f"{_FEED}.experts.*.w2",
    }


def _kinds(values: ConfigValues) -> Kinds:
    """Read a list of all layers, or, in the first files, the numbers of each kind from 1 on."""
    count = num_layers(values)
    if values.value("layer_types") is not None or values.value("full_attn_layers") is None:
        return listed(lambda values, layer: FULL if layer and layer % 4 == 0 else STATE)(values)
    found: dict[int, str] = {}
    for key, kind in _STATED:
        numbers = values.value(key)
        if not isinstance(numbers, (list, tuple)) or not {*numbers} <= {*range(1, count + 1)}:
            raise values.bad(key, numbers, f"must list numbers of layers, from 1 to {count}")
        found |= dict.fromkeys(numbers, kind)
    if len(found) < count:
        allowed = f"and full_attn_layers must have each of the {count} layers"
        raise values.bad("kda_layers", values.value("kda_layers"), allowed)
    return tuple(found[number] for number in range(1, count + 1))


def _mixer(values: ConfigValues, layer: int) -> DeltaPlan:
    heads, size = values.count("linear_num_heads"), values.count("linear_head_dim")
    window = values.count("linear_conv_kernel_dim", most=MOST_WINDOW)
    # The short rows of decays and gates are as long as a head.
    return DeltaPlan(heads, heads, size, size, window, values.epsilon(), "apart", rank=size)


def _scale(values: ConfigValues) -> float:
    plan = latent_plan(values)
    return float((plan.rope_dim + plan.nope_dim) ** -0.5)


FAMILY = Family(
    "kimi_linear",
    "KimiLinearForCausalLM",
    names=_names,
    other_names={f"{_FEED}.{part}_proj": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    defaults={
        "vocab_size": 163840,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 163584,
        "eos_token_id": 163586,
        "pad_token_id": 163839,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "moe_intermediate_size": 1024,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.446,
        "first_k_dense_replace": 1,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
    },
    spellings={
        "max_position_embeddings": "model_max_length",
        "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
        "n_group": "num_expert_group",
        "norm_topk_prob": "moe_renormalize",
        "scoring_func": "moe_router_activation_func",
        "full_attn_layers": "linear_attn_config.full_attn_layers",
        "kda_layers": "linear_attn_config.kda_layers",
        "linear_head_dim": "linear_attn_config.head_dim",
        "linear_num_heads": "linear_attn_config.num_heads",
        "linear_conv_kernel_dim": "linear_attn_config.short_conv_kernel_size",
    },
    only={
        "hidden_act": "silu",
        "mla_use_nope": True,
        "moe_layer_freq": 1,
        "tie_word_embeddings": False,
    },
    kv_heads=latent_kv_heads,
    positions="none",
    latent=latent_plan,
    attention_scale=_scale,
    kinds=_kinds,
    mixer=_mixer,
    experts=as_listed(grouped_plan, dense_before(grouped_plan)),
)
