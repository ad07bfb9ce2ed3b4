"""EXAONE 4: norms after each part; if layers slide, only those have a rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.olmo2 import OLMO2_NAMES
from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.layer_plan import HeadNormPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def slides(values: ConfigValues, layer: int) -> bool:
    """Read a number, or letters: L for a layer that slides; the last layer never does."""
    pattern = values.value("sliding_window_pattern")
    if not isinstance(pattern, str):
        return (layer + 1) % values.count("sliding_window_pattern") != 0
    if not pattern or set(pattern) - {"L", "G"}:
        raise values.bad("sliding_window_pattern", pattern, "must be a number, or of L and G")
    is_last = layer + 1 == values.count("num_hidden_layers")
    return pattern[layer % len(pattern)] == "L" and not is_last


FAMILY = Family(
    "exaone4",
    "Exaone4ForCausalLM",
    names=OLMO2_NAMES,
    defaults={
        **SMALL,
        "vocab_size": 102400,
        "intermediate_size": 16384,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    has_rope=lambda values, layer, kind: (
        values.count_or_none("sliding_window") is None or kind == "sliding_attention"
    ),
    has_qkv_bias=False,
    head_norm=HeadNormPlan(),
    window=lambda values: values.count_or_none("sliding_window"),
    slides=slides,
    has_layer_types=True,
)
