"""Qwen 2 and 2.5: biases on queries, keys and values; some layers may slide.

What sets it apart is in its configuration; the block is the shared one.
"""

from __future__ import annotations

from asyncgen.models.decoder import DecoderLM


class Qwen2(DecoderLM):
    """A decoder with rotary positions, grouped-query attention and a gated feed-forward block."""

    model_type = "qwen2"
    class_name = "Qwen2ForCausalLM"
    tokenizer_names = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
