"""Qwen 3: queries and keys are normalised per head; heads may be wider than their share."""

from __future__ import annotations

from asyncgen.models.decoder import DecoderLM


class Qwen3(DecoderLM):
    """Llama's block with a norm on every query and key head before they are turned."""

    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"
    qk_norm = True
