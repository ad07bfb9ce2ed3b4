"""Bamba: Mamba 2 in most layers, attention in some; a feed-forward in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import LLAMA_NAMES, Family, flag
from asyncgen.families.plans.layer_kinds import FULL, STATE
from asyncgen.families.plans.rope_values import partial_rotary_factor
from asyncgen.families.plans.state_plan import MAMBA_2, MAMBA_SPELLINGS, dual_plan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues, Kinds

BESIDE_MAMBA: dict[str, str] = {
    **LLAMA_NAMES,
    "mixer": "mamba",
    "norm": "model.final_layernorm",
    "post_norm": "pre_ff_layernorm",
    "gate_up": "feed_forward.gate_proj feed_forward.up_proj",
    "down": "feed_forward.down_proj",
}
"""Names of Bamba's, Falcon H1's and Jamba's weights."""


def _kinds(values: ConfigValues) -> Kinds:
    """Let the layers attend whose numbers a list names."""
    count = values.count("num_hidden_layers", most=MOST_LAYERS)
    stated = values.value("attn_layer_indices") or []
    if not isinstance(stated, (list, tuple)) or any(
        type(one) is not int or not 0 <= one < count for one in stated
    ):
        allowed = f"must list numbers of layers, which are below {count}"
        raise values.bad("attn_layer_indices", stated, allowed)
    attending = frozenset(stated)
    return tuple(FULL if layer in attending else STATE for layer in range(count))


FAMILY = Family(
    "bamba",
    "BambaForCausalLM",
    names=BESIDE_MAMBA,
    defaults={
        **MAMBA_2,
        "vocab_size": 128000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    spellings=MAMBA_SPELLINGS,
    only={"hidden_act": "silu"},
    kinds=_kinds,
    mixer=lambda values, layer: dual_plan(
        values, heads_key="mamba_n_heads", size_key="mamba_d_head"
    ),
    partial_rotary_factor=partial_rotary_factor,
    has_up_bias=flag("mlp_bias"),
)
