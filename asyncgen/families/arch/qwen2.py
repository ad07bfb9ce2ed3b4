"""Qwen 2 and 2.5: biases on queries, keys and values; some layers may slide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST
from asyncgen.families.plans.declaration import Family

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

QWEN = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def window(values: ConfigValues) -> int | None:
    """Read the window, if it is in use."""
    first = values.stated("max_window_layers")
    if not isinstance(first, int) or abs(first) > MOST:
        raise values.bad("max_window_layers", first, "must be a whole number")
    return values.count_or_none("sliding_window") if values.flag("use_sliding_window") else None


def slides(values: ConfigValues, layer: int) -> bool:
    """Let the last layers slide, from the one that the file names."""
    first = values.stated("max_window_layers")
    return isinstance(first, int) and layer >= first


FAMILY = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    ("Qwen2Tokenizer", "Qwen2TokenizerFast"),
    defaults=QWEN,
    has_qkv_bias=True,
    has_output_bias=False,
    window=window,
    slides=slides,
    has_layer_types=True,
)
