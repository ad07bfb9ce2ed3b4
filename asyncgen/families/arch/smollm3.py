"""SmolLM 3: Llama's layer; every fourth layer has no rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import SMALL, Family, flag

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _has_rope(values: ConfigValues, layer: int, kind: str) -> bool:
    # The list has 1 for layers with a rope, whatever its name says.
    stated = values.value("no_rope_layers")
    if stated is None:
        return (layer + 1) % values.count("no_rope_layer_interval") != 0
    layers = values.count("num_hidden_layers")
    if not isinstance(stated, (list, tuple)) or len(stated) != layers:
        raise values.bad("no_rope_layers", stated, f"must list 0 or 1 for {layers} layers")
    return bool(stated[layer])


FAMILY = Family(
    "smollm3",
    "SmolLM3ForCausalLM",
    defaults={
        **SMALL,
        "vocab_size": 128256,
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2_000_000.0,
        "pad_token_id": 128004,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "tie_word_embeddings": True,
        "no_rope_layer_interval": 4,
    },
    has_rope=_has_rope,
    has_up_bias=flag("mlp_bias"),
    window=lambda values: (
        values.count_or_none("sliding_window") if values.flag("use_sliding_window") else None
    ),
    slides=lambda values, layer: not _has_rope(values, layer, ""),
    has_layer_types=True,
)
