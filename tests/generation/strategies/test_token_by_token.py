"""The shared loop: prompts in chunks, one id a row and step, greedy or drawn, rows that end."""

from __future__ import annotations

import pytest
import torch

from asyncgen.generation.logits.base import LogitsProcessor, LogitsProcessorList
from asyncgen.generation.strategies.step import Outcome, Step
from asyncgen.generation.strategies.token_by_token import (
    TorchDraw,
    greedy,
    multinomial_draw,
    require_finite,
    sample,
)
from tests.cases import for_each
from tests.doubles.models import PAD, TableModel
from tests.generation.strategies.plans import plan_of

PROMPT = [[5, 6, 7, 8, 9, 10, 11]]


def test_steps_joined_are_the_outcome() -> None:
    plan = plan_of(TableModel(), PROMPT, new_tokens=9)
    steps = greedy(plan)
    settled: list[int] = []
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            outcome = end.value
            break
        settled += step.token_ids[0]
    assert isinstance(outcome, Outcome)
    assert outcome.sequences.tolist() == [PROMPT[0] + settled]
    assert len(settled) == 9


@for_each("chunk", [1, 2, 3, 6, 7, 100, None])
def test_chunks_change_nothing_but_the_number_of_steps(chunk: int | None) -> None:
    whole = list(greedy(plan_of(TableModel(), PROMPT, new_tokens=4)))
    model = TableModel()
    steps = list(greedy(plan_of(model, PROMPT, new_tokens=4, prefill_chunk=chunk)))
    empty = [step for step in steps if step.tokens is None]
    assert len(empty) == (0 if chunk is None else -(-len(PROMPT[0]) // chunk) - 1)
    assert all(step.token_ids == [[]] for step in empty)
    assert [step.token_ids for step in steps[len(empty) :]] == [step.token_ids for step in whole]
    assert max(length for _, length in model.core.forwards) <= (chunk or len(PROMPT[0]))


def test_rows_end_one_by_one_and_are_padded() -> None:
    model = TableModel(eos_bias=2.0, seed=3)
    prompts = [[row, 2 * row, 3 * row] for row in range(1, 9)]
    steps = greedy(plan_of(model, prompts, new_tokens=40))
    ended: dict[int, int] = {}
    rows: list[list[int]] = [[] for _ in prompts]
    for number, step in enumerate(steps):
        assert step.tokens is not None
        for row, ids in enumerate(step.token_ids):
            if row in ended:
                assert ids == []
                assert int(step.tokens[row]) == PAD
                assert step.reasons[row] is None
            rows[row] += ids
            if step.reasons[row] is not None:
                ended[row] = number
    assert len(ended) == len(prompts)
    assert len(set(ended.values())) > 2
    # Each row alone gives the same tokens.
    for prompt, row_ids in zip(prompts, rows, strict=True):
        alone = greedy(plan_of(TableModel(eos_bias=2.0, seed=3), [prompt], new_tokens=40))
        assert [step.token_ids[0][0] for step in alone] == row_ids


def test_grad_mode_is_restored() -> None:
    steps = greedy(plan_of(TableModel(), PROMPT, new_tokens=3))
    assert torch.is_grad_enabled()
    next(steps)
    assert torch.is_grad_enabled()
    steps.close()
    assert torch.is_grad_enabled()


def test_closing_computes_nothing_more() -> None:
    model = TableModel()
    steps = greedy(plan_of(model, PROMPT, new_tokens=30))
    next(steps)
    steps.close()
    assert model.num_forwards == 1


def test_sequences_longer_than_the_first_buffer() -> None:
    model = TableModel(context_length=4096)
    plan = plan_of(model, PROMPT, new_tokens=1300)
    sequences = [step.token_ids[0][0] for step in greedy(plan)]
    assert len(sequences) == 1300


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


def test_asks_the_draw_once_a_step_with_the_position() -> None:
    asked: list[int] = []

    class Least(TorchDraw):
        """Draws the least probable of the first tokens."""

        def __call__(self, scores: torch.Tensor, position: int, stream: int = 0) -> torch.Tensor:
            """Note the position."""
            asked.append(position)
            return scores[:, :200].argmin(dim=-1)

    plan = plan_of(TableModel(), [[4, 4, 4]], new_tokens=4)
    plan.draw = Least()
    for step in sample(plan):
        assert step.scores is not None
        assert step.token_ids == [step.scores[:, :200].argmin(dim=-1).tolist()]
    assert asked == [3, 4, 5, 6]


def test_multinomial_follows_the_global_seed() -> None:
    scores = torch.randn(3, 50)
    torch.manual_seed(11)
    first = multinomial_draw(scores, 0)
    torch.manual_seed(11)
    assert multinomial_draw(scores, 99).tolist() == first.tolist()


def test_multinomial_never_takes_a_banned_token() -> None:
    scores = torch.full((1, 40), -torch.inf)
    scores[0, [3, 17]] = 0.0
    torch.manual_seed(0)
    assert {int(multinomial_draw(scores, 0)) for _ in range(50)} == {3, 17}


def test_finite_scores_pass() -> None:
    require_finite(torch.tensor([0.0, -3e38, 5.0]), 1)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_anything_else_is_an_error(bad: float) -> None:
    with pytest.raises(FloatingPointError, match="position 17"):
        require_finite(torch.tensor([1.0, bad]), 17)


def test_a_prompt_chunk_settles_nothing() -> None:
    step = Step([[], []])
    assert step.tokens is None
    assert step.reasons == []
    assert step.logits is None


def test_outcomes_do_not_share_their_extras() -> None:
    first, second = Outcome(torch.zeros(1, 1)), Outcome(torch.zeros(1, 1))
    first.extra["sequences_scores"] = torch.zeros(1)
    assert second.extra == {}
