"""Falcon, both generations: joined matrices by groups of heads, parallel parts, or ALiBi."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.attention_options import alibi_slopes
from asyncgen.families.plans.declaration import LAYER, SMALL, Family, flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.layer_plan import Positions

_NAMES = {
    "embed_tokens": "transformer.word_embeddings",
    "layers": "transformer.h",
    "norm": "transformer.ln_f",
    "lm_head": "lm_head",
    "input_norm": "input_layernorm",
    "qkv": "self_attention.query_key_value",
    "output": "self_attention.dense",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}


def _names(values: ConfigValues) -> Mapping[str, str]:
    is_new = values.flag("new_decoder_architecture")
    norms = values.count("num_ln_in_parallel_attn", default=2 if is_new else 1)
    if is_new and norms == 2:
        return {**_NAMES, "input_norm": "ln_attn", "post_norm": "ln_mlp"}
    if values.flag("parallel_attn"):
        return _NAMES
    return {**_NAMES, "post_norm": "post_attention_layernorm"}


def _kv_heads(values: ConfigValues) -> int:
    heads = values.count("num_attention_heads")
    if values.flag("new_decoder_architecture"):
        return values.count("num_kv_heads", default=heads)
    return 1 if values.flag("multi_query") else heads


def _slopes(values: ConfigValues) -> tuple[float, ...] | None:
    if not values.flag("alibi"):
        return None
    # Slopes are added before the scores are scaled.
    heads = values.count("num_attention_heads")
    scale = (values.count("hidden_size") // heads) ** -0.5
    return tuple(slope * scale for slope in alibi_slopes(heads))


def _positions(values: ConfigValues) -> Positions:
    return "none" if values.flag("alibi") else "rotary"


FAMILY = Family(
    "falcon",
    "FalconForCausalLM",
    names=_names,
    qkv_groups=_kv_heads,
    defaults={
        **SMALL,
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_attention_heads": 71,
        "intermediate_size": None,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-5,
        "multi_query": True,
        "parallel_attn": True,
        "bos_token_id": 11,
        "eos_token_id": 11,
        "tie_word_embeddings": True,
    },
    spellings={
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    unread=frozenset(
        {"intermediate_size", "hidden_act", "rms_norm_eps", "num_key_value_heads", "head_dim"}
    ),
    kv_heads=_kv_heads,
    width=lambda values: values.count("intermediate_size", default=4 * values.count("hidden_size")),
    positions=_positions,
    norm=LAYER,
    has_qkv_bias=flag("bias"),
    has_up_bias=flag("bias"),
    is_gated=False,
    is_parallel=lambda values: (
        values.flag("parallel_attn") or values.flag("new_decoder_architecture")
    ),
    slopes=_slopes,
)
