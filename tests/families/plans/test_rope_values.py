"""Parts of heads that rotate: odd numbers of features, and those that have no meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import ModelLoadError
from asyncgen.families.config import ModelConfig
from asyncgen.families.plans.rope_config import part_of_head
from tests.cases import for_each
from tests.families.arch.families import make
from tests.families.arch.proofs import ROWS

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.tensor(ROWS[2:3])


def _turned(part: float, **more: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 77.0, "partial_rotary_factor": part}
    return {"rope_parameters": {**rope, **more}}


def _by_kind(part: float) -> dict[str, Any]:
    rope = _turned(part)["rope_parameters"]
    return {"rope_parameters": {"full_attention": rope, "sliding_attention": rope}}


ODD: list[tuple[str, dict[str, Any]]] = [
    # 16 * 0.334 is five features, which are three pairs.
    ("mimo_v2_flash", {"head_dim": 16, **_by_kind(0.334)}),
    ("glm", {"head_dim": 12, **_turned(0.6)}),  # adjacent features, seven of twelve
    ("gpt_neox", {"hidden_size": 48, **_turned(0.42, rope_type="linear", factor=3.0)}),
]
MORE_ODD: list[tuple[str, dict[str, Any]]] = [
    ("glm4_moe", {"head_dim": 16, **_turned(0.334)}),
    ("nemotron", {"head_dim": 8, **_turned(0.9)}),
    ("phi3", {"hidden_size": 48, **_turned(0.3)}),
    ("qwen3_5_text", {"head_dim": 16, **_turned(0.2)}),
    ("recurrent_gemma", {"head_dim": 16, **_turned(0.7)}),
    ("minimax_m2", {"head_dim": 12, **_turned(0.92)}),  # all twelve rotate, eleven divide
]


@for_each("family, overrides", ODD)
def test_odd_number_of_rotated_features_is_rounded_up_as_in_the_reference(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    compare(family, overrides, tmp_path / family)


@pytest.mark.gate
@for_each("family, overrides", MORE_ODD)
def test_odd_number_is_rounded_up_in_every_family(
    family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    compare(family, overrides, tmp_path / family)


def compare(family: str, overrides: dict[str, Any], folder: Path) -> None:
    """Compare logits with those of the reference."""
    theirs = make(family, folder, **overrides)
    with torch.no_grad():
        expected = theirs(IDS).logits
    found = asyncgen.load_model(folder, dtype="float32")(IDS).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@for_each(
    "file, message",
    [
        ({"model_type": "phi", "partial_rotary_factor": 0.33}, "an even number of a head's 64"),
        ({"model_type": "stablelm", "partial_rotary_factor": 0.32}, "an even number"),
        ({"model_type": "persimmon", "partial_rotary_factor": 0.33}, "an even number"),
        ({"model_type": "gptj", "rotary_dim": 33}, "`rotary_dim` is 33: must be even"),
        ({"model_type": "gptj", "rope_theta": 5000.0}, "`rope_theta` is 5000.0"),
        ({"model_type": "codegen", "rope_scaling": {"type": "linear"}}, "`rope_scaling`"),
        ({"model_type": "minimax", "partial_rotary_factor": 0.5}, "rotary_dim says it"),
        (
            {
                "model_type": "phi3",
                "head_dim": 100,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 2.0,
                    "partial_rotary_factor": 0.35,
                    "original_max_position_embeddings": 16,
                },
            },
            "rotates 35 features",
        ),
    ],
)
def test_part_without_a_meaning_is_refused_by_name(file: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_hf(file)


def test_part_of_head_gives_its_features_back() -> None:
    for size in range(2, 260):
        for features in range(size + 1):
            part = part_of_head(features, size)
            assert int(part * size) == features == round(part * size)


def test_part_is_cut_off_as_by_the_reference() -> None:
    """100 * 0.29 is a little less than 29."""
    file = {"model_type": "glm", "head_dim": 100, "partial_rotary_factor": 0.29}
    assert ModelConfig.from_hf(file).rope.exponents(100) == 28


YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize("value", [0, 1, 0.0, "false", "", [], {}])
def test_truncate_is_true_false_or_null(value: object) -> None:
    raw = {"model_type": "llama", "rope_parameters": {**YARN, "truncate": value}}
    with pytest.raises(
        ModelLoadError, match=r"config.json: `rope_parameters\.(truncate|rope_type)`"
    ):
        ModelConfig.from_hf(raw)


@pytest.mark.parametrize(("value", "meant"), [(True, True), (False, False), (None, False)])
def test_truncate_means_what_it_means_to_the_reference(value: object, meant: bool) -> None:
    config = ModelConfig.from_hf(
        {"model_type": "llama", "rope_parameters": {**YARN, "truncate": value}}
    )
    assert config.rope.truncate is meant
