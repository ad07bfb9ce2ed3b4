"""OLMo Hybrid: three of four layers have the gated delta rule, the fourth attends as OLMo 2.

The former have a norm before each part, the latter after each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.olmo2 import OLMO2_NAMES
from asyncgen.families.plans.declaration import LLAMA_NAMES, Family
from asyncgen.families.plans.delta_plan import delta_plan
from asyncgen.families.plans.layer_kinds import FULL, STATE, listed, num_layers
from asyncgen.families.plans.layer_plan import HeadNormPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.delta_plan import DeltaPlan
    from asyncgen.families.plans.layer_plan import Positions


def _kind(values: ConfigValues, layer: int) -> str:
    """Let each fourth layer attend; of fewer layers the last one."""
    count = num_layers(values)
    return FULL if layer % 4 == 3 or (count < 4 and layer == count - 1) else STATE


def _mixer(values: ConfigValues, layer: int) -> DeltaPlan:
    heads = values.count("num_attention_heads")
    key_heads = values.count("linear_num_key_heads", default=heads)
    key = max(1, 3 * values.count("hidden_size") // (4 * key_heads))
    key = values.count("linear_key_head_dim", default=key)
    plan = delta_plan(
        values, "apart", heads=heads, key_heads=key_heads, keys=key, value_size=2 * key
    )
    # The norm behind the rule has its own epsilon, whatever the file says of the others.
    return replace(plan, eps=1e-5, most_rate=2.0 if values.flag("linear_allow_neg_eigval") else 1.0)


def _positions(values: ConfigValues) -> Positions:
    """Use no rope if the file has no theta."""
    stated = values.value("rope_parameters")
    has_none = isinstance(stated, Mapping) and stated.get("rope_theta", 1) is None
    return "none" if has_none else "rotary"


FAMILY = Family(
    "olmo_hybrid",
    "OlmoHybridForCausalLM",
    names={
        **LLAMA_NAMES,
        "mixer": "linear_attn",
        "input_norm": "attention_layer_norm",
        "post_norm": "feedforward_layer_norm",
    },
    names_by_kind={FULL: OLMO2_NAMES},
    other_names={
        "attention_layer_norm": "input_layernorm",
        "feedforward_layer_norm": "post_attention_layernorm",
        "post_attention_layernorm": "feedforward_layer_norm",  # as the reference saves it
    },
    defaults={
        "vocab_size": 100352,
        "hidden_size": 3840,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 30,
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-6,
        "eos_token_id": 100257,
        "pad_token_id": 100277,
        "linear_conv_kernel_dim": 4,
        "linear_allow_neg_eigval": True,
    },
    only={"hidden_act": "silu"},
    positions=_positions,
    kinds=listed(_kind),
    mixer=_mixer,
    head_norm=HeadNormPlan(span="width"),
)
