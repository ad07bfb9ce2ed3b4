"""Verification keeps the model's distribution, whatever the draft, with either source of chance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.strategies.step import Proposal
from asyncgen.generation.strategies.token_by_token import TorchDraw
from asyncgen.generation.strategies.verify import verify
from tests.cases import for_each, some
from tests.doubles.models import TableModel
from tests.generation.strategies.plans import plan_of

if TYPE_CHECKING:
    from asyncgen.generation.strategies.step import Draw, Plan

SIZE = 5
RUNS = 1200


def plan_with(processors: LogitsProcessorList | None = None, do_sample: bool = True) -> Plan:
    plan = plan_of(TableModel(), [[1, 2, 3]], new_tokens=9, processors=processors)
    plan.config.do_sample = do_sample
    return plan


def source(kind: str, run: int) -> Draw:
    if kind == "hash":
        return HashDraw(run)
    torch.manual_seed(run)
    return TorchDraw()


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the error of counts, in standard deviations of the statistic's own distribution."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.numel() - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.gate
@pytest.mark.parametrize("kind", some(["hash", "torch"], 1))
@for_each("sharpness", [0.5, 3.0])
@for_each("with_scores", [True, False])
def test_sampled_tokens_have_the_models_distribution(
    kind: str, sharpness: float, with_scores: bool
) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(3, SIZE, generator=generator)
    drafted = torch.randn(2, SIZE, generator=generator) * sharpness
    first, second = torch.zeros(SIZE), torch.zeros(SIZE)
    plan = plan_with()
    for run in range(RUNS):
        plan.draw = source(kind, run)
        rows = [plan.draw(drafted[place][None], 3 + place, stream=3) for place in (0, 1)]
        guesses = torch.cat(rows)
        ids = torch.tensor([[1, 2, 3, *guesses.tolist(), 0]])
        proposal = Proposal(guesses, drafted if with_scores else None)
        verdict = verify(plan, ids, 3, logits, proposal)
        assert 1 <= len(verdict.token_ids) == len(verdict.scores) <= 3
        assert verdict.token_ids[: verdict.accepted] == guesses[: verdict.accepted].tolist()
        first[verdict.token_ids[0]] += 1
        if verdict.accepted:
            second[verdict.token_ids[1]] += 1
    assert second.sum() > RUNS / 10
    assert chi_square(first, logits[0].softmax(0) * RUNS) < 6
    assert chi_square(second, logits[1].softmax(0) * second.sum()) < 6


def test_a_draft_that_is_the_model_is_always_right() -> None:
    logits = torch.randn(4, SIZE)
    plan = plan_with()
    for run in range(50):
        plan.draw = source("torch", run)
        guesses = plan.draw.successive(logits[:3], 3)
        ids = torch.tensor([[1, 2, 3, *guesses.tolist(), 0]])
        assert verify(plan, ids, 3, logits, Proposal(guesses, logits[:3])).accepted == 3


def test_a_processor_is_asked_as_without_a_draft() -> None:
    calls: list[list[int]] = []

    def listens(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(input_ids[0].tolist())
        return scores

    plan = plan_with(LogitsProcessorList([listens]), do_sample=False)
    logits = torch.zeros(4, SIZE)
    logits[torch.arange(4), torch.tensor([4, 1, 2, 3])] = 1.0
    ids = torch.tensor([[1, 2, 3, 4, 0, 2, 0]])
    verdict = verify(plan, ids, 3, logits, Proposal(torch.tensor([4, 0, 2])))
    assert verdict.token_ids == [4, 1]
    assert calls == [[1, 2, 3], [1, 2, 3, 4]]


@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize("with_processor", [True, False])
def test_nan_logits_are_refused_with_their_position(do_sample: bool, with_processor: bool) -> None:
    keeps: Any = LogitsProcessorList([lambda input_ids, scores: scores])
    plan = plan_with(keeps if with_processor else None, do_sample)
    plan.draw = HashDraw(0)
    logits = torch.full((2, SIZE), math.nan)
    guess = Proposal(torch.tensor([1]), torch.zeros(1, SIZE) if do_sample else None)
    with pytest.raises(FloatingPointError, match="position 3"):
        verify(plan, torch.tensor([[1, 2, 3, 1, 0]]), 3, logits, guess)
