"""Rows are sorted into stages once, and each row keeps the order of its processors."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.sampling.sampler import BatchPlan, ScoreBatch
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from tests.doubles.models import VOCABULARY
from tests.engine.making import request_for, sequence_of

if TYPE_CHECKING:
    from asyncgen.engine.batch.sequence import Sequence

ROWS: Any = [SimpleNamespace(user_draws=None)] * 2


def row_of(**given: Any) -> Sequence:
    """A row of a request of its own."""
    return sequence_of(request_for([1, 2], **given)[0], 0)


def plan_of(*rows: Sequence) -> BatchPlan:
    """The plan of some rows."""
    scores = ScoreBatch(torch.zeros(len(rows), VOCABULARY), [*rows], own=False)
    return BatchPlan(scores, can_list=True)


def names(plan: BatchPlan) -> list[str]:
    """The kinds of its stages."""
    return [type(stage).__name__ for stage in plan.stages]


def test_rows_are_grouped_by_selection_method() -> None:
    plain = row_of()
    listed = row_of(top_k=20, top_p=0.5, temperature=0.4)
    drawn = row_of(top_k=0, temperature=0.4)
    plan = plan_of(drawn, plain, listed)
    assert (plan.greedy, plan.drawn, plan.listed) == ([1], [0], [2])
    assert names(plan) == ["_Filter"]


def test_criteria_that_look_at_scores_get_them_all() -> None:
    criteria = StoppingCriteriaList([lambda ids, scores, **_: ids[:, -1] == 1])
    plan = plan_of(row_of(top_k=20, stopping_criteria=criteria))
    assert plan.drawn == [0] and names(plan) == ["_Filter"]


def test_one_stage_serves_all_rows_that_have_the_processor() -> None:
    rows = [row_of(repetition_penalty=1.0 + number / 8) for number in range(1, 5)]
    assert names(plan_of(*rows, row_of())) == ["_BatchedPenalty"]


def test_processors_of_users_stand_before_the_filters_of_sampling() -> None:
    mine = LogitsProcessorList([lambda ids, scores: scores])
    row = row_of(logits_processor=mine, top_k=0, temperature=0.4, repetition_penalty=1.2)
    assert names(plan_of(row)) == ["_BatchedPenalty", "_OneByOne", "_Filter"]


def test_custom_processor_order_is_kept() -> None:
    request, _ = request_for([1, 2], suppress_tokens=[1], repetition_penalty=1.2)
    request = replace(request, processors=LogitsProcessorList(reversed(request.processors)))
    plan = plan_of(sequence_of(request, 0), row_of(suppress_tokens=[1], repetition_penalty=1.2))
    assert names(plan) == ["_BatchedPenalty", "Ban", "Ban", "_BatchedPenalty"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_not_written_to(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 9).to(dtype)
    kept = logits.clone()
    scores = ScoreBatch(logits, ROWS, own=True)
    scores.flat[3] = 50.0
    assert scores.values[0, 3] == 50.0
    assert torch.equal(logits, kept)
    assert torch.equal(scores.raw(0), kept[:1].float())


def test_read_only_scores_are_not_copied() -> None:
    logits = torch.randn(2, 9)
    assert ScoreBatch(logits, ROWS, own=False).values.data_ptr() == logits.data_ptr()
    strided = torch.randn(9, 2).T
    assert ScoreBatch(strided, ROWS, own=False).values.is_contiguous()


def test_the_first_failure_of_a_row_counts() -> None:
    scores = ScoreBatch(torch.zeros(2, 3), ROWS, own=True)
    for error in (ValueError("first"), KeyError("second")):
        with scores.guarded(1):
            raise error
    with scores.guarded(0):
        pass
    assert list(scores.failures) == [1]
    assert str(scores.failures[1]) == "first"
