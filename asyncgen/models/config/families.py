"""What a ``config.json`` of each architecture leaves unsaid, and how it spells the rest.

A table; what is done with it is in ``config``. This module imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Family:
    """What a missing key means for one ``model_type``, and which keys the type reads at all.

    Attributes:
        defaults: Values of missing keys.
        attention_bias: Where q, k and v biases come from: the key, always, or never.
        output_bias: Whether ``attention_bias`` also covers the output projection.
        mlp_bias: Whether the key ``mlp_bias`` is read.
        windows: Which layers may slide: none, all, or those listed in ``layer_types``.
        spellings: Names that this type has for keys of the others; either is read.
        unread: Keys of the others that this type does not have.
        hidden_act: What a missing activation means.
        learned_positions: Whether positions are rows of a table, and not rotations.
        relative_positions: Whether only distances count, as a bias on the attention scores.
    """

    defaults: Mapping[str, object]
    attention_bias: Literal["key", "always", "never"] = "never"
    output_bias: bool = False
    mlp_bias: bool = False
    windows: Literal["none", "all", "listed"] = "none"
    spellings: Mapping[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    hidden_act: str = "silu"
    learned_positions: bool = False
    relative_positions: bool = False


_SMALL = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN = {
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
_GPT2 = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
_T5 = {
    "vocab_size": 32128,
    "hidden_size": 512,
    "head_dim": 64,
    "intermediate_size": 2048,
    "num_layers": 6,
    "num_attention_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        {**_SMALL, "intermediate_size": 11008, "max_position_embeddings": 2048},
        attention_bias="key",
        output_bias=True,
        mlp_bias=True,
    ),
    "mistral": Family(
        {
            **_SMALL,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        windows="all",
    ),
    "qwen2": Family(_QWEN, attention_bias="always", windows="listed"),
    "qwen3": Family(
        {**_QWEN, "head_dim": 128}, attention_bias="key", output_bias=True, windows="listed"
    ),
    "gpt2": Family(
        _GPT2,
        attention_bias="always",
        spellings={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
            "hidden_act": "activation_function",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        unread=frozenset(
            {"intermediate_size", "hidden_act", "rms_norm_eps", "num_key_value_heads", "head_dim"}
        ),
        hidden_act="gelu_new",
        learned_positions=True,
    ),
    "t5": Family(
        _T5,
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
        relative_positions=True,
    ),
}
"""What each ``model_type`` reads and defaults to."""
