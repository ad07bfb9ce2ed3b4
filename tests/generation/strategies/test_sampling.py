"""Sampling draws from the processed scores, with the draw that the plan brings."""

from __future__ import annotations

import torch

from asyncgen.generation.strategies.sampling import TorchDraw, multinomial_draw, sample
from tests.doubles.models import TableModel
from tests.generation.strategies.plans import plan_of


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
