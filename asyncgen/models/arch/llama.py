"""Llama 1 to 3 and everything that shares their layout.

What sets it apart is in its configuration; the block is the shared one.
"""

from __future__ import annotations

from asyncgen.models.decoder import DecoderLM


class Llama(DecoderLM):
    """A decoder with rotary positions, grouped-query attention and a gated feed-forward block."""

    model_type = "llama"
    class_name = "LlamaForCausalLM"
    tokenizer_names = ("LlamaTokenizer", "LlamaTokenizerFast")
