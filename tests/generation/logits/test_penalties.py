"""The repetition penalty, against transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.penalties import (
    RepetitionPenaltyLogitsProcessor,
    penalize_repetition,
)
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


@pytest.mark.parametrize("penalty", [0, 0.0, -1.0, 2, "a", None])
def test_bad_penalty(penalty: float) -> None:
    with pytest.raises(InvalidRequestError, match="penalty"):
        RepetitionPenaltyLogitsProcessor(penalty)


def test_bad_ignored_length() -> None:
    with pytest.raises(InvalidRequestError, match="prompt_ignore_length"):
        RepetitionPenaltyLogitsProcessor(1.2, -1)
