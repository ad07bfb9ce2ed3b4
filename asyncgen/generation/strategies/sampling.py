"""Multinomial sampling: a token drawn from the processed distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.finite import require_finite
from asyncgen.generation.strategies.token_by_token import token_by_token

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps

__all__ = ["TorchDraw", "multinomial_draw", "sample"]


def sample(plan: Plan) -> Steps:
    """Decode with a token drawn by ``plan.draw`` at every position."""
    return token_by_token(plan, plan.draw)


class TorchDraw:
    """A :class:`~asyncgen.generation.strategies.step.Draw` from torch's global generator.

    It asks for numbers in the order in which the reference does. Positions and streams mean
    nothing to it: the generator has its own place.
    """

    def __call__(self, scores: Tensor, position: int, stream: int = 0) -> Tensor:
        """Draw ids ``[B]`` from softmax of float32 scores ``[B, V]``.

        Raises:
            FloatingPointError: A row of scores holds NaN, or bans every token.
        """
        probabilities = torch.softmax(scores, dim=-1)
        # One bad score spoils its whole row; CUDA's multinomial would end the process over it.
        require_finite(probabilities[:, 0], position)
        return torch.multinomial(probabilities, num_samples=1).squeeze(1)

    def successive(self, scores: Tensor, position: int) -> Tensor:
        """Draw ids ``[S]`` for the positions of scores ``[S, V]``, all at once."""
        return self(scores, position)

    def uniform(self, position: int, count: int, stream: int = 0) -> Tensor:
        """Draw float32 ``[count]`` from [0, 1)."""
        return torch.rand(count)

    def several(self, scores: Tensor, count: int, position: int) -> Tensor:
        """Draw indices ``[B, count]`` of float32 scores ``[B, M]``, none of them twice."""
        return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=count)


multinomial_draw = TorchDraw()
"""The source of ``model.generate``."""
