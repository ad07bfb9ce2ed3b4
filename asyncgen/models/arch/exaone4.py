"""EXAONE 4: norms after each part; where layers slide, those alone turn."""

from __future__ import annotations

from asyncgen.models.arch.olmo2 import OLMO2_NAMES
from asyncgen.models.family.declaration import SMALL, Family, slides_but_every
from asyncgen.models.family.plan import HeadNormPlan

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
    head_norm=HeadNormPlan(),
    window=lambda values: values.count_or_none("sliding_window"),
    slides=slides_but_every("sliding_window_pattern"),
    has_layer_types=True,
)
