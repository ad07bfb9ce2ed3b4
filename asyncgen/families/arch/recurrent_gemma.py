"""RecurrentGemma: Griffin's recurrent blocks in two of three layers, windows in the third."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import LLAMA_NAMES, RMS_PLUS_ONE, Family
from asyncgen.families.plans.griffin_plan import griffin_plan
from asyncgen.families.plans.layer_kinds import STATE, num_layers
from asyncgen.families.plans.rope_values import partial_rotary_factor

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues, Kinds

_KINDS = {"recurrent": STATE, "attention": "sliding_attention"}


def _kinds(values: ConfigValues) -> Kinds:
    """Repeat a list of kinds over all layers."""
    stated = values.value("block_types")
    allowed = f"must list one of {', '.join(_KINDS)} each"
    if not isinstance(stated, (list, tuple)) or not stated:
        raise values.bad("block_types", stated, allowed)
    if any(not isinstance(one, str) or one not in _KINDS for one in stated):
        raise values.bad("block_types", stated, allowed)
    return tuple(_KINDS[stated[layer % len(stated)]] for layer in range(num_layers(values)))


def _width(values: ConfigValues) -> int:
    """Halve the file's width of the feed-forward, which counts its gate as well."""
    return values.count("intermediate_size") // 2


def _embedding_scale(values: ConfigValues) -> float:
    """Compute the root of the width as a bfloat16 number, in any dtype of the model."""
    (bits,) = struct.unpack("<I", struct.pack("<f", values.count("hidden_size") ** 0.5))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    (found,) = struct.unpack("<f", struct.pack("<I", rounded))
    return float(found)


FAMILY = Family(
    "recurrent_gemma",
    "RecurrentGemmaForCausalLM",
    names={
        **LLAMA_NAMES,
        "norm": "model.final_norm",
        "input_norm": "temporal_pre_norm",
        "mixer": "temporal_block",
        "qkv": "temporal_block.q_proj temporal_block.k_proj temporal_block.v_proj",
        "output": "temporal_block.o_proj",
        "post_norm": "channel_pre_norm",
        "gate_up": "mlp_block.gate_proj mlp_block.up_proj",
        "down": "mlp_block.down_proj",
    },
    defaults={
        "vocab_size": 256000,
        "hidden_size": 2560,
        "intermediate_size": 7680,
        "num_hidden_layers": 26,
        "num_attention_heads": 10,
        "max_position_embeddings": 1 << 20,  # nothing limits it
        "rms_norm_eps": 1e-6,
        "attention_window_size": 2048,
        "block_types": ("recurrent", "recurrent", "attention"),
        "conv1d_width": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "logits_soft_cap": 30.0,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
    spellings={"hidden_act": "hidden_activation"},
    only={"hidden_act": "gelu_pytorch_tanh", "embeddings_scale_by_sqrt_dim": True},
    kinds=_kinds,
    mixer=lambda values, layer: griffin_plan(values),
    window=lambda values: values.count("attention_window_size"),
    width=_width,
    partial_rotary_factor=partial_rotary_factor,
    norm=RMS_PLUS_ONE,
    has_output_bias=True,
    has_up_bias=True,
    embedding_scale=_embedding_scale,
    logit_cap=lambda values: values.positive_or_none("logits_soft_cap"),
)
