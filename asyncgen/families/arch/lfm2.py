"""LFM2: gated short convolutions in most layers, attention in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.convolution_plan import convolution_plan
from asyncgen.families.plans.declaration import LLAMA_NAMES, Family
from asyncgen.families.plans.layer_kinds import FULL, STATE, listed
from asyncgen.families.plans.layer_plan import HeadNormPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

LFM2_NAMES = {
    **LLAMA_NAMES,
    "norm": "model.embedding_norm",
    "input_norm": "operator_norm",
    "post_norm": "ffn_norm",
    "mixer": "conv",
    "q_norm": "self_attn.q_layernorm",
    "k_norm": "self_attn.k_layernorm",
    "output": "self_attn.out_proj",
    "gate_up": "feed_forward.w1 feed_forward.w3",
    "down": "feed_forward.w2",
}
LFM2 = {
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "conv_L_cache": 3,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_KINDS = {"conv": STATE, FULL: FULL}


def _otherwise(values: ConfigValues, layer: int) -> str:
    """Read a list of the layers that attend, if there is no list of kinds; without both all do."""
    stated = values.value("full_attn_idxs")
    if stated is None:
        return FULL
    if not isinstance(stated, (list, tuple)) or any(type(one) is not int for one in stated):
        raise values.bad("full_attn_idxs", stated, "must list numbers of layers")
    return FULL if layer in stated else STATE


def width(values: ConfigValues) -> int:
    """Compute the feed-forward's width: two thirds of the file's, times a factor, in whole
    blocks."""
    stated = values.count("intermediate_size")
    if not values.flag("block_auto_adjust_ff_dim"):
        return stated
    found = int(2 * stated / 3)
    if values.value("block_ffn_dim_multiplier") is not None:
        found = int(values.positive("block_ffn_dim_multiplier") * found)
    block = values.count("block_multiple_of")
    return -(-found // block) * block


kinds = listed(_otherwise, _KINDS)

FAMILY = Family(
    "lfm2",
    "Lfm2ForCausalLM",
    names=LFM2_NAMES,
    defaults={
        **LFM2,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    spellings={"rms_norm_eps": "norm_eps"},
    unread=frozenset({"hidden_act"}),
    kinds=kinds,
    mixer=lambda values, layer: convolution_plan(values),
    has_qkv_bias=False,
    allows_dola=True,
    width=width,
    head_norm=HeadNormPlan(),
)
