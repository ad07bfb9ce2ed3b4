"""mT5: T5 1.1 in many languages; the decoder's output is never scaled."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import t5

FAMILY = replace(
    t5.FAMILY,
    model_type="mt5",
    class_name="MT5ForConditionalGeneration",
    defaults={
        **t5.FAMILY.defaults,
        "vocab_size": 250112,
        "intermediate_size": 1024,
        "num_layers": 8,
        "num_attention_heads": 6,
        "feed_forward_proj": "gated-gelu",
        "scale_decoder_outputs": False,
    },
    only={"scale_decoder_outputs": False},
)
