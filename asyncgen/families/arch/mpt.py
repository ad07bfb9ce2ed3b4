"""MPT: ALiBi, norms without biases, joined matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.layer_plan import NormPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

_SUPPORTED = {
    "alibi": True,
    "attn_type": "multihead_attention",
    "alibi_bias_max": 8,
    "clip_qkv": None,
    "prefix_lm": False,
    "qk_ln": False,
    "softmax_scale": None,
}


def _slopes(values: ConfigValues) -> tuple[float, ...]:
    """Compute the slopes: of the next power of two, every second one first if there are fewer
    heads."""
    stated = values.value("attn_config") or {}
    if not isinstance(stated, dict):
        raise values.bad("attn_config", stated, "must be an object")
    for key, supported in _SUPPORTED.items():
        if stated.get(key, supported) not in (supported, None):
            raise values.bad(f"attn_config.{key}", stated[key], f"supported is {supported!r}")
    heads = values.count("num_attention_heads")
    power = 1 << (heads - 1).bit_length()
    slopes = [2.0 ** (-8 * number / power) for number in range(1, power + 1)]
    return tuple(slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads])


FAMILY = Family(
    "mpt",
    "MptForCausalLM",
    names={
        "embed_tokens": "transformer.wte",
        "layers": "transformer.blocks",
        "norm": "transformer.norm_f",
        "lm_head": "lm_head",
        "input_norm": "norm_1",
        "qkv": "attn.Wqkv",
        "output": "attn.out_proj",
        "post_norm": "norm_2",
        "up": "ffn.up_proj",
        "down": "ffn.down_proj",
    },
    defaults={
        "vocab_size": 50368,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    spellings={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    unread=frozenset({"rms_norm_eps", "num_key_value_heads", "head_dim", "logit_scale"}),
    only={"no_bias": True, "expansion_ratio": 4},
    width=lambda values: 4 * values.count("hidden_size"),
    positions="none",
    norm=NormPlan("layer"),
    has_qkv_bias=False,
    activation="gelu",
    is_gated=False,
    slopes=_slopes,
    spans_gaps=True,
)
