"""Greedy decoding takes the best score, and refuses scores that have none."""

from __future__ import annotations

import pytest
import torch

from asyncgen.generation.logits import LogitsProcessor, LogitsProcessorList
from asyncgen.generation.strategies.greedy import greedy
from tests.doubles.models import TableModel
from tests.generation.strategies.plans import plan_of


class Fill(LogitsProcessor):
    """Replaces every score of the second token."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores if input_ids.shape[1] == 2 else torch.full_like(scores, self.value)


def test_takes_the_argmax_of_every_step() -> None:
    for step in greedy(plan_of(TableModel(), [[1, 2]], new_tokens=12)):
        assert step.scores is not None
        assert step.token_ids == [step.scores.argmax(dim=-1).tolist()]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_unusable_scores_are_an_error(value: float) -> None:
    plan = plan_of(
        TableModel(), [[1, 2]], new_tokens=5, processors=LogitsProcessorList([Fill(value)])
    )
    steps = greedy(plan)
    next(steps)
    with pytest.raises(FloatingPointError, match="position 3"):
        next(steps)
