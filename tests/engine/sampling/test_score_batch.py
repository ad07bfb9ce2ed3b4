"""Rows are sorted into stages once, and each in the order of its processors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.sampling.score_batch import BatchLayout, BatchScores
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from tests.doubles.models import VOCABULARY
from tests.engine.making import request_for, sequence_of

if TYPE_CHECKING:
    from asyncgen.engine.batch.sequence import Sequence


def row_of(**given: Any) -> Sequence:
    """A row of a request of its own."""
    return sequence_of(request_for([1, 2], **given)[0], 0)


def layout_of(*rows: Sequence) -> BatchLayout:
    """The layout of some rows."""
    return BatchLayout(BatchScores(torch.zeros(len(rows), VOCABULARY), list(rows), own=False))


def names(layout: BatchLayout) -> list[str]:
    """The kinds of its steps."""
    return [type(step).__name__ for step in layout.steps]


def test_rows_are_told_apart_by_how_they_pick() -> None:
    plain = row_of()
    listed = row_of(top_k=20, top_p=0.5, temperature=0.4)
    drawn = row_of(top_k=0, temperature=0.4)
    layout = layout_of(drawn, plain, listed)
    assert (layout.greedy, layout.drawn, layout.listed) == ([1], [0], [2])
    assert names(layout) == ["_Filter"]


def test_criteria_that_look_at_scores_get_them_all() -> None:
    criteria = StoppingCriteriaList([lambda ids, scores, **_: ids[:, -1] == 1])
    layout = layout_of(row_of(top_k=20, stopping_criteria=criteria))
    assert layout.drawn == [0] and names(layout) == ["_Filter"]


def test_one_stage_serves_all_rows_that_have_the_processor() -> None:
    rows = [row_of(repetition_penalty=1.0 + number / 8) for number in range(1, 5)]
    assert names(layout_of(*rows, row_of())) == ["_Penalize"]


def test_processors_of_users_stand_before_the_filters_of_sampling() -> None:
    mine = LogitsProcessorList([lambda ids, scores: scores])
    row = row_of(logits_processor=mine, top_k=0, temperature=0.4, repetition_penalty=1.2)
    assert names(layout_of(row)) == ["_Penalize", "_OneByOne", "_Filter"]


def test_an_order_of_its_own_is_kept() -> None:
    request, _ = request_for([1, 2], suppress_tokens=[1], repetition_penalty=1.2)
    request = replace(request, processors=LogitsProcessorList(reversed(request.processors)))
    layout = layout_of(sequence_of(request, 0), row_of(suppress_tokens=[1], repetition_penalty=1.2))
    assert names(layout) == ["_Penalize", "Ban", "Ban", "_Penalize"]
