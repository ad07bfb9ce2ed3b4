"""Ministral 8B of 2024: Mistral with layers of both kinds."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import mistral

FAMILY = replace(
    mistral.FAMILY,
    model_type="ministral",
    class_name="MinistralForCausalLM",
    has_layer_types=True,
)
