"""GPT-J: both parts of a layer read one normalised stream; part of a head rotates, adjacent
features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.gpt2 import (
    GPT2_DEFAULTS,
    GPT2_NAMES,
    GPT2_SPELLINGS,
    GPT2_UNREAD,
    four_times,
)
from asyncgen.families.plans.declaration import LAYER, Family, without
from asyncgen.families.plans.rope_config import part_of_head

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

GPTJ_NAMES = {
    **without(GPT2_NAMES, "embed_positions", "post_norm"),
    "qkv": "attn.q_proj attn.k_proj attn.v_proj",
    "output": "attn.out_proj",
    "up": "mlp.fc_in",
    "down": "mlp.fc_out",
}
GPTJ = {
    **without(GPT2_DEFAULTS, "scale_attn_weights", "tie_word_embeddings"),
    "vocab_size": 50400,
    "hidden_size": 4096,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "max_position_embeddings": 2048,
    "rotary_dim": 64,
}


def rotary_part(values: ConfigValues) -> float:
    """Read the part of a head that rotates, from a number of features."""
    values.require("rope_theta", 10000, 10000.0)  # the type has no key for another
    size = values.count("hidden_size") // values.count("num_attention_heads")
    features = values.count_or_none("rotary_dim") or size
    if features % 2 or features > size:
        raise values.bad(
            "rotary_dim", features, f"must be even and at most the head's size ({size})"
        )
    return part_of_head(features, size)


FAMILY = Family(
    "gptj",
    "GPTJForCausalLM",
    names=GPTJ_NAMES,
    # Causal masks, which early checkpoints stored with every layer.
    unneeded=(r"\.attn\.(masked_)?bias$",),
    defaults=GPTJ,
    spellings=GPT2_SPELLINGS,
    unread=GPT2_UNREAD,
    only={"rope_scaling": None, "rope_parameters": None},
    width=four_times,
    partial_rotary_factor=rotary_part,
    is_interleaved=True,
    norm=LAYER,
    has_qkv_bias=False,
    has_up_bias=True,
    is_gated=False,
    is_parallel=True,
    has_head_bias=True,
)
