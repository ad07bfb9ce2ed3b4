"""T5 and its later variants: an encoder, a decoder, and relative positions.

Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.1. `encoder_decoder`
computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import HIDDEN_ACTS, MOST_LAYERS
from asyncgen.families.plans.declaration import Family

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _layers(values: ConfigValues) -> int:
    # Null or missing: as many as the encoder has.
    encoder = values.count("num_layers", most=MOST_LAYERS)
    return values.count("num_decoder_layers", default=encoder, most=MOST_LAYERS)


def _feed_forward(values: ConfigValues) -> tuple[bool, str]:
    """Read whether the feed-forward is gated, and its activation, from a name such as
    ``gated-gelu``."""
    key = "feed_forward_proj"
    stated = values.stated(key)
    name = stated.removeprefix("gated-") if isinstance(stated, str) else ""
    if name not in HIDDEN_ACTS:
        names = ", ".join(HIDDEN_ACTS)
        raise values.bad(key, stated, f"supported are {names}, each also after `gated-`")
    is_gated = name != stated
    # The released gated checkpoints were trained with the approximation by tanh.
    name = "gelu_new" if is_gated and name == "gelu" else name
    # What the reference makes of it stands in files as well, and is taken from there.
    if "is_gated_act" in values.raw:
        is_gated = values.flag("is_gated_act")
    return is_gated, values.choice("dense_act_fn", HIDDEN_ACTS, name)


FAMILY = Family(
    "t5",
    "T5ForConditionalGeneration",
    ("T5Tokenizer", "T5TokenizerFast"),
    has_encoder=True,
    names={"embed_tokens": "shared", "lm_head": "lm_head"},
    # Other names of the table, and a bias that the first release stored without use.
    unneeded=(
        r"^(encoder|decoder)\.embed_tokens\.weight$",
        r"EncDecAttention\.relative_attention_bias\.weight$",
    ),
    defaults={
        "vocab_size": 32128,
        "hidden_size": 512,
        "head_dim": 64,
        "intermediate_size": 2048,
        "num_layers": 6,
        "num_attention_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
    },
    spellings={
        "hidden_size": "d_model",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "num_attention_heads": "num_heads",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    unread=frozenset(
        {"hidden_act", "num_hidden_layers", "num_key_value_heads", "max_position_embeddings"}
    ),
    layers=_layers,
    positions="buckets",
    has_qkv_bias=False,
    activation=lambda values: _feed_forward(values)[1],
    is_gated=lambda values: _feed_forward(values)[0],
    attention_scale=1.0,
)
