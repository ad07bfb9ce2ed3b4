"""LFM3: gated short convolutions, sliding attention and full attention; a gate for each head.

Norms stand around both parts; full attention rotates the fastest pairs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.lfm2 import LFM2_NAMES
from asyncgen.families.plans.convolution_plan import convolution_plan
from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.layer_kinds import FULL, STATE, listed
from asyncgen.families.plans.layer_plan import HeadNormPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues

_SLIDING = "sliding_attention"
_NAMES = {
    **LFM2_NAMES,
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "output": "self_attn.o_proj",
    "attention_gate": "self_attn.gate_proj",
}
_AROUND = {"output_norm": "post_operator_norm", "down_norm": "post_ffn_norm"}


def _names(values: ConfigValues) -> Mapping[str, str]:
    return {**_NAMES, **_AROUND} if values.flag("use_sandwich_norm") else _NAMES


def _otherwise(values: ConfigValues, layer: int) -> str:
    """Let one of four layers attend to everything, and one to a window, but the first."""
    if layer % 4 == 2:
        return FULL
    return _SLIDING if layer and layer % 4 == 0 else STATE


FAMILY = Family(
    "lfm3",
    "Lfm3ForCausalLM",
    names=_names,
    other_names={"self_attn.gate_proj": "self_attn.g_proj"},
    defaults={
        "vocab_size": 128000,
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-5,
        "conv_L_cache": 7,
        "sliding_window": 256,
        "use_sandwich_norm": True,
        "use_attention_gate": True,
        "tie_word_embeddings": True,
        "bos_token_id": 124894,
        "eos_token_id": 124900,
        "pad_token_id": 124893,
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
            FULL: {
                "rope_type": "proportional",
                "rope_theta": 1_000_000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    },
    spellings={"rms_norm_eps": "norm_eps"},
    unread=frozenset({"hidden_act"}),
    kinds=listed(_otherwise, {"conv": STATE, FULL: FULL, _SLIDING: _SLIDING}),
    mixer=lambda values, layer: convolution_plan(values),
    allows_dola=True,
    ropes_by_kind=True,
    window=lambda values: values.count("sliding_window"),
    head_norm=HeadNormPlan(),
    has_gate=flag("use_attention_gate"),
    gates_heads=True,
)
