"""Multinomial sampling: a token drawn from the processed distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.finite import require_finite
from asyncgen.generation.strategies.token_by_token import token_by_token

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps

__all__ = ["multinomial_draw", "sample"]


def sample(plan: Plan) -> Steps:
    """Decode with a token drawn by ``plan.draw`` at every position."""
    return token_by_token(plan, plan.draw)


def multinomial_draw(scores: Tensor, position: int) -> Tensor:
    """Draw from softmax(scores) with torch's global generator, as the reference does.

    Args:
        scores: Processed scores, float32 ``[B, V]``.
        position: For the message; the global generator has its own place.

    Returns:
        Token ids, int64 ``[B]``.

    Raises:
        FloatingPointError: A row of scores holds NaN, or bans every token.
    """
    probabilities = torch.softmax(scores, dim=-1)
    # One bad score spoils its whole row; CUDA's multinomial would end the process over it.
    require_finite(probabilities[:, 0], position)
    return torch.multinomial(probabilities, num_samples=1).squeeze(1)
