"""Mistral: Llama's layout, with a sliding window in every layer where the file asks for one.

What sets it apart is in its configuration; the block is the shared one.
"""

from __future__ import annotations

from asyncgen.models.decoder import DecoderLM


class Mistral(DecoderLM):
    """A decoder with rotary positions, grouped-query attention and a gated feed-forward block."""

    model_type = "mistral"
    class_name = "MistralForCausalLM"
