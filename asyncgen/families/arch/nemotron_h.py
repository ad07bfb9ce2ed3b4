"""Nemotron-H and Nemotron 3: layers of a single part each.

A part is Mamba 2, attention without a rope, or a plain feed-forward of squared rectifiers, which
may be one of experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import LLAMA_NAMES, Family, flag
from asyncgen.families.plans.expert_values import grouped_plan
from asyncgen.families.plans.layer_kinds import EXPERTS, FEED, FULL, STATE, listed, num_layers
from asyncgen.families.plans.state_plan import MAMBA_2, dual_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues, Kinds
    from asyncgen.families.plans.experts_plan import ExpertsPlan

_KINDS = {
    "mamba": STATE,
    "attention": FULL,
    **{kind: kind for kind in (STATE, FULL, FEED, EXPERTS)},
}
_LETTERS = {"M": STATE, "*": FULL, "-": FEED, "E": EXPERTS}

_NAMES = {
    **{key: LLAMA_NAMES[key] for key in ("lm_head",)},
    "embed_tokens": "backbone.embeddings",
    "layers": "backbone.layers",
    "norm": "backbone.norm_f",
    "input_norm": "norm",
    "mixer": "mixer",
    "qkv": "mixer.q_proj mixer.k_proj mixer.v_proj",
    "output": "mixer.o_proj",
    "up": "mixer.up_proj",
    "down": "mixer.down_proj",
}
_EXPERTS_NAMES = {
    "router": "mixer.gate",
    "correction": "mixer.gate.e_score_correction_bias",
    "experts_gate_up": "mixer.experts.*.up_proj",
    "experts_down": "mixer.experts.*.down_proj",
    "shared_gate_up": "mixer.shared_experts.up_proj",
    "shared_down": "mixer.shared_experts.down_proj",
    "experts_enter": "mixer.fc1_latent_proj",
    "experts_leave": "mixer.fc2_latent_proj",
}


def _layers(values: ConfigValues) -> int:
    for key in ("hybrid_override_pattern", "layers_block_type"):
        stated = values.value(key)
        if isinstance(stated, (str, list, tuple)) and 0 < len(stated) <= MOST_LAYERS:
            return len(stated)
    return num_layers(values)


def _kinds(values: ConfigValues) -> Kinds:
    """Read a pattern of letters, as the first files have it, or a list."""
    pattern = values.value("hybrid_override_pattern")
    if pattern is None:
        return listed(lambda values, layer: STATE, _KINDS, "layers_block_type", _layers)(values)
    count = _layers(values)
    if not isinstance(pattern, str) or len(pattern) != count or {*pattern} - {*_LETTERS}:
        raise values.bad("hybrid_override_pattern", pattern, "supported are M, *, - and E")
    return tuple(_LETTERS[letter] for letter in pattern)


def _names(values: ConfigValues) -> Mapping[str, str]:
    return {**_NAMES, **_EXPERTS_NAMES} if EXPERTS in _kinds(values) else _NAMES


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    kinds = values.once("hybrid_override_pattern", lambda stated: _kinds(values))
    if kinds[layer] != EXPERTS:
        return None
    values.require("mlp_bias", False)
    plan = grouped_plan(values, is_gated=False)
    shared = values.count("moe_shared_expert_intermediate_size")
    latent = values.count_or_none("moe_latent_size")
    return replace(plan, shared_width=shared, latent=latent or 0)


FAMILY = Family(
    "nemotron_h",
    "NemotronHForCausalLM",
    names=_names,
    unneeded=(r"^mtp\.",),
    defaults={
        **MAMBA_2,
        "vocab_size": 131072,
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "layers_block_type": (STATE, EXPERTS, FULL, FEED),
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "relu2",
        "n_groups": 8,
        "state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    spellings={
        "hidden_act": "mlp_hidden_act",
        "num_experts": "n_routed_experts",
        "rms_norm_eps": "layer_norm_epsilon",
        "state_size": "ssm_state_size",
    },
    only={
        "mamba_hidden_act": "silu",
        "sliding_window": None,
        "attention_bias": False,
        "tie_word_embeddings": False,
    },
    layers=_layers,
    positions="none",
    kinds=_kinds,
    mixer=lambda values, layer: dual_plan(
        values, heads_key="mamba_num_heads", size_key="mamba_head_dim", channels=0
    ),
    has_feed_forward=lambda values, layer, kind: kind in (FEED, EXPERTS),
    experts=_experts,
    is_gated=False,
    has_qkv_bias=False,
    has_up_bias=flag("mlp_bias"),
)
