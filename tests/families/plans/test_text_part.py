"""Checkpoints that also see are loaded as their text models."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.families.plans.text_part import text_config, text_tensors
from tests.cases import for_each
from tests.families.arch.families import COMMON

if TYPE_CHECKING:
    from pathlib import Path

VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
OTHER_VISION = {
    "llama4": {
        "intermediate_size": 64,
        "vision_output_dim": 32,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    }
}
OWN = {
    "gemma4_text": {"global_head_dim": 12, "vocab_size_per_layer_input": 96},
    "gemma4_unified_text": {"global_head_dim": 12},
}
"""What else makes a text model small."""


@pytest.mark.parametrize(
    ("model_type", "text", "vision"),
    [
        ("aria", "aria_text", "idefics3_vision"),
        ("gemma3", "gemma3_text", "siglip_vision_model"),
        ("gemma4", "gemma4_text", "gemma4_vision"),
        ("gemma4_unified", "gemma4_unified_text", "gemma4_unified_vision"),
        ("llama4", "llama4_text", "llama4_vision_model"),
        ("llava", "llama", "clip_vision_model"),
        ("mistral3", "ministral3", "pixtral"),
    ],
)
def test_the_text_model_is_loaded_and_that_is_said(
    model_type: str, text: str, vision: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        model_type,
        text_config={**COMMON, **OWN.get(text, {}), "head_dim": 8, "model_type": text},
        vision_config={**VISION, **OTHER_VISION.get(model_type, {}), "model_type": vision},
    )
    torch.manual_seed(0)
    theirs = transformers.AutoModelForImageTextToText.from_config(config).eval()
    theirs.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        ours = asyncgen.load_model(tmp_path, dtype="float32")
    assert "its text model alone is loaded" in caplog.text
    assert ours.config.model_type == text
    ids = torch.randint(3, 96, (2, 12))
    with torch.no_grad():
        expected = theirs(ids).logits
    torch.testing.assert_close(ours(ids).logits, expected, atol=1e-4, rtol=1e-4)
    ours.save_pretrained(tmp_path / "text")
    again = asyncgen.load_model(tmp_path / "text", dtype="float32")
    assert torch.equal(again(ids).logits, ours(ids).logits)


def test_other_models_are_left_alone() -> None:
    assert text_config({"model_type": "llama"}) is None
    assert text_config({"model_type": "other", "text_config": {}}) is None
    raw = {"model_type": "gemma3", "text_config": {"eos_token_id": 1}, "eos_token_id": [1, 106]}
    assert text_config(raw) == {"model_type": "gemma3_text", "eos_token_id": [1, 106]}


def test_names_in_either_order() -> None:
    old = {"language_model.model.norm.weight": 1, "language_model.lm_head.weight": 2, "v.x": 3}
    new = {"model.language_model.norm.weight": 1, "lm_head.weight": 2, "model.v.x": 3}
    assert text_tensors(old) == text_tensors(new) == {"model.norm.weight": 1, "lm_head.weight": 2}


@for_each(
    "outer, text",
    [("mistral3", "mistral4"), ("mistral3", "ministral3"), ("gemma4_unified", None)],
)
def test_type_of_the_text_model_is_the_files(outer: str, text: str | None) -> None:
    stated = {} if text is None else {"model_type": text}
    found = text_config({"model_type": outer, "text_config": stated})
    assert found is not None
    assert found["model_type"] == (text or "gemma4_unified_text")
