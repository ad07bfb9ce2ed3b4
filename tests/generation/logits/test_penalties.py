"""Penalties, against transformers and against their definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.penalties import (
    EncoderRepetitionPenaltyLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    penalize_frequency,
    penalize_presence,
    penalize_repetition,
)
from tests.cases import for_each
from tests.generation.logits.against import Case, assert_agrees, assert_same, cases


@settings(max_examples=40, deadline=None)
@given(cases(), st.floats(0.1, 4.0), st.integers(0, 16))
def test_repetition_penalty(case: Case, penalty: float, ignored: int) -> None:
    theirs = reference.RepetitionPenaltyLogitsProcessor(penalty)
    assert_agrees(RepetitionPenaltyLogitsProcessor(penalty), theirs, case)
    theirs = reference.RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=ignored)
    assert_agrees(RepetitionPenaltyLogitsProcessor(penalty, ignored), theirs, case)


def test_a_parameter_per_row_is_that_row_alone() -> None:
    scores, ids = torch.randn(3, 20), torch.randint(0, 20, (3, 9))
    penalties = [0.5, 1.0, 3.0]
    rows = [
        penalize_repetition(scores[row : row + 1], ids[row : row + 1], penalty)
        for row, penalty in enumerate(penalties)
    ]
    assert_same(penalize_repetition(scores, ids, torch.tensor(penalties)[:, None]), torch.cat(rows))
    assert torch.equal(rows[1], scores[1:2])


@for_each("penalty", [0, 0.0, -1.0, 2, "a", None])
def test_bad_penalty(penalty: float) -> None:
    with pytest.raises(InvalidRequestError, match="penalty"):
        RepetitionPenaltyLogitsProcessor(penalty)


def test_bad_ignored_length() -> None:
    with pytest.raises(InvalidRequestError, match="prompt_ignore_length"):
        RepetitionPenaltyLogitsProcessor(1.2, -1)


@settings(max_examples=40, deadline=None)
@given(cases(), st.floats(0.1, 4.0), st.integers(1, 3))
def test_encoder_repetition_penalty(case: Case, penalty: float, beams: int) -> None:
    prompt, scores = case
    ids, scores = prompt.repeat_interleave(beams, 0), scores.repeat_interleave(beams, 0)
    theirs = reference.EncoderRepetitionPenaltyLogitsProcessor(penalty, prompt)
    assert_agrees(EncoderRepetitionPenaltyLogitsProcessor(penalty, prompt), theirs, (ids, scores))


@pytest.mark.parametrize("penalty", [0.0, -1.0, 2, "a"])
def test_bad_encoder_penalty(penalty: float) -> None:
    with pytest.raises(InvalidRequestError, match="penalty"):
        EncoderRepetitionPenaltyLogitsProcessor(penalty, torch.ones(1, 1, dtype=torch.int64))


@settings(max_examples=60, deadline=None)
@given(
    st.data(), st.floats(-2, 2), st.floats(-2, 2), st.integers(0, 6), st.booleans(), st.booleans()
)
def test_presence_and_frequency(
    data: st.DataObject, presence: float, frequency: float, prompt: int, trust: bool, skip: bool
) -> None:
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=9, max_size=9)) * 2).view(
        2, 9
    )
    ids[1] = ids[1].flip(0)
    first = PresencePenaltyLogitsProcessor(presence, prompt, tail_only=trust)
    second = FrequencyPenaltyLogitsProcessor(frequency, prompt, tail_only=trust)
    for length in range(max(prompt, 1), 10, 2 if skip else 1):
        scores = torch.randn(2, 6)
        kept = scores.clone()
        actual = second(ids[:, :length], first(ids[:, :length], scores))
        assert torch.equal(scores, kept)
        for row in range(2):
            generated = ids[row, prompt:length].tolist()
            for token in range(6):
                count = generated.count(token)
                expected = scores[row, token] - presence * (count > 0) - frequency * count
                assert actual[row, token] == pytest.approx(expected.item(), abs=1e-5)


def test_counting_other_sequences_begins_anew() -> None:
    processor = FrequencyPenaltyLogitsProcessor(1.0)
    assert processor(torch.tensor([[1, 1]]), torch.zeros(1, 3)).tolist() == [[0, -2, 0]]
    assert processor(torch.tensor([[2]]), torch.zeros(1, 3)).tolist() == [[0, 0, -1]]
    assert processor(torch.tensor([[0, 1], [2, 2]]), torch.zeros(2, 3)).tolist() == [
        [-1, -1, 0],
        [0, 0, -2],
    ]


@pytest.mark.parametrize("function", [penalize_presence, penalize_frequency])
def test_a_count_penalty_per_row_is_that_row_alone(function: Any) -> None:
    scores, counts = torch.randn(3, 8), torch.randint(0, 3, (3, 8)).float()
    penalties = [0.0, -1.0, 1.5]
    rows = [function(scores[i : i + 1], counts[i : i + 1], p) for i, p in enumerate(penalties)]
    assert_same(function(scores, counts, torch.tensor(penalties)[:, None]), torch.cat(rows))
    assert torch.equal(rows[0], scores[:1])


@for_each("arguments", [("a",), (None,), (float("nan"),), (float("inf"),), (True,), (1.0, -1)])
def test_bad_count_penalty(arguments: Any) -> None:
    with pytest.raises(InvalidRequestError):
        PresencePenaltyLogitsProcessor(*arguments)
    with pytest.raises(InvalidRequestError):
        FrequencyPenaltyLogitsProcessor(*arguments)
