"""Beams with ten other parameters at a time, over one stack and over two, as in transformers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidScoresError
from tests.parity import test_combinations as combinations
from tests.parity import test_seq2seq as seq2seq

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

transformers = pytest.importorskip("transformers")

TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-4}
one_stack = combinations.models


@pytest.fixture(scope="module")
def pairs(
    one_stack: list[tuple[Any, Any]],  # a fixture
    tmp_path_factory: pytest.TempPathFactory,
) -> list[tuple[Any, Any]]:
    """Tiny random models here and there: Llama, Qwen 3 and T5."""
    folder: Path = tmp_path_factory.mktemp("t5")
    return [*one_stack, seq2seq.models(3, folder)]


def _call(choice: random.Random, *, has_encoder: bool) -> dict[str, Any]:
    """Beams, and ten parameters more."""
    values = combinations.draw(choice)
    values.pop("negative_prompt_ids", None)
    values.pop("num_return_sequences", None)
    if has_encoder:
        values.pop("prefill_chunk_size", None)
    call = combinations.arguments(values, choice)
    beams = choice.randint(2, 4)
    if call.get("guidance_scale") and not has_encoder and choice.random() < 0.5:
        row = [choice.randrange(3, 60) for _ in range(choice.choice([2, 9]))]
        call["negative_prompt_ids"] = torch.tensor([row] * len(call["input_ids"]) * beams)
    if choice.random() < 0.1:
        call["cache_implementation"] = "static"
    return call | {
        "num_beams": beams,
        "num_return_sequences": choice.randint(1, beams),
        "early_stopping": choice.choice([True, False, "never"]),
        "length_penalty": choice.choice([1.0, 0.0, -1.5, 2.0]),
    }


def _compare(pairs: list[tuple[Any, Any]], seed: int) -> str:
    """Run one call here and there; tells what came of it."""
    choice = random.Random(f"beams {seed}")
    theirs, ours = pairs[seed % len(pairs)]
    call = _call(choice, has_encoder=ours.config.is_encoder_decoder)
    asked = {name: value for name, value in call.items() if name != "input_ids"}
    expected = combinations.run(theirs, combinations.synthid_for(transformers, call), seed)
    found = combinations.run(ours, call, seed)
    if isinstance(expected, Exception):
        return "both refused" if isinstance(found, Exception) else "only theirs failed"
    if isinstance(found, InvalidScoresError):
        return "no token to pick"
    assert not isinstance(found, Exception), (seed, asked, found)
    for ours_step, theirs_step in zip(found.scores, expected.scores, strict=False):
        both = ours_step.isfinite() & theirs_step.isfinite()
        if int((ours_step.isfinite() != theirs_step.isfinite()).sum()) > 0:
            return "edge of a filter"
        torch.testing.assert_close(ours_step[both], theirs_step[both], **TOLERANCE)
    if found.sequences.tolist() != expected.sequences.tolist():
        # Only equally good sequences may be told apart by rounding.
        near: dict[str, Any] = {"atol": 1e-3, "rtol": 1e-6}
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, **near)
        return "equally good"
    assert found.beam_indices.tolist() == expected.beam_indices.tolist(), (seed, asked)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, **TOLERANCE)
    assert len(found.scores) == len(expected.scores)
    return "same tokens"


def _count(pairs: list[tuple[Any, Any]], seeds: range) -> Counter[str]:
    from collections import Counter

    return Counter(_compare(pairs, seed) for seed in seeds)


@pytest.mark.gate
def test_forty_combinations(pairs: list[tuple[Any, Any]]) -> None:
    outcomes = _count(pairs, range(40))
    assert outcomes["same tokens"] >= 25, outcomes


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_six_hundred_combinations(
    pairs: list[tuple[Any, Any]], record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = _count(pairs, range(1000, 1600))
    for outcome, count in outcomes.items():
        record_property(outcome, count)
    with capsys.disabled():
        import sys

        sys.stdout.write(f"\n600 combinations of beams and ten parameters: {dict(outcomes)}\n")
    assert outcomes["same tokens"] >= 400, outcomes
