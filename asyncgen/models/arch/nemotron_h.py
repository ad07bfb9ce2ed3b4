"""Nemotron-H: blocks of a single part each: Mamba 2, attention without a rope, or a plain
feed-forward of squared rectifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.models.family.declaration import LLAMA_NAMES, Family, flag
from asyncgen.models.family.layer_kinds import FEED, FULL, STATE, listed, num_layers
from asyncgen.models.family.states import MAMBA_2, dual_plan
from asyncgen.models.family.values import MOST_LAYERS

if TYPE_CHECKING:
    from asyncgen.models.family.values import ConfigValues, Kinds

_KINDS = {"mamba": STATE, "attention": FULL, STATE: STATE, FULL: FULL, FEED: FEED}
_LETTERS = {"M": STATE, "*": FULL, "-": FEED}


def _layers(values: ConfigValues) -> int:
    for key in ("hybrid_override_pattern", "layers_block_type"):
        stated = values.value(key)
        if isinstance(stated, (str, list, tuple)) and 0 < len(stated) <= MOST_LAYERS:
            return len(stated)
    return num_layers(values)


def _kinds(values: ConfigValues) -> Kinds:
    """What a pattern of letters says, as the first files have it, or a list."""
    pattern = values.value("hybrid_override_pattern")
    if pattern is None:
        return listed(lambda values, layer: STATE, _KINDS, "layers_block_type", _layers)(values)
    count = _layers(values)
    if not isinstance(pattern, str) or len(pattern) != count or {*pattern} - {*_LETTERS}:
        raise values.bad("hybrid_override_pattern", pattern, "supported are M, * and -")
    return tuple(_LETTERS[letter] for letter in pattern)


FAMILY = Family(
    "nemotron_h",
    "NemotronHForCausalLM",
    names={
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
    },
    defaults={
        **MAMBA_2,
        "vocab_size": 131072,
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "num_hidden_layers": 52,
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
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    spellings={
        "hidden_act": "mlp_hidden_act",
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
    has_feed_forward=lambda values, layer, kind: kind == FEED,
    is_gated=False,
    up_bias=flag("mlp_bias"),
    down_bias=flag("mlp_bias"),
)
