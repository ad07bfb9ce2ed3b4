"""Scores of a step belong to the step, and a row fails alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.engine.sampling.score_batch import BatchScores

ROWS: Any = [None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_not_written_to(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 9).to(dtype)
    kept = logits.clone()
    scores = BatchScores(logits, ROWS, own=True)
    scores.flat[3] = 50.0
    assert scores.values[0, 3] == 50.0
    assert torch.equal(logits, kept)
    assert torch.equal(scores.raw(0), kept[:1].float())


def test_nothing_is_copied_that_is_only_read() -> None:
    logits = torch.randn(2, 9)
    assert BatchScores(logits, ROWS, own=False).values.data_ptr() == logits.data_ptr()
    strided = torch.randn(9, 2).T
    assert BatchScores(strided, ROWS, own=False).values.is_contiguous()


def test_the_first_failure_of_a_row_counts() -> None:
    scores = BatchScores(torch.zeros(2, 3), ROWS, own=True)
    for error in (ValueError("first"), KeyError("second")):
        with scores.guarded(1):
            raise error
    with scores.guarded(0):
        pass
    assert list(scores.failures) == [1]
    assert str(scores.failures[1]) == "first"
