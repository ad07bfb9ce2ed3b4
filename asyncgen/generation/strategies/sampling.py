"""Multinomial sampling: a token drawn from the processed distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.generation.strategies.token_by_token import token_by_token

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps

__all__ = ["multinomial_draw", "multinomial_several", "sample"]


def sample(plan: Plan) -> Steps:
    """Decode with a token drawn by ``plan.draw`` at every position."""
    return token_by_token(plan, plan.draw)


def multinomial_draw(scores: Tensor, position: int) -> Tensor:
    """Draw from softmax(scores) with torch's global generator, as the reference does.

    Args:
        scores: Processed scores, float32 ``[B, V]``.
        position: Not used: the global generator has its own place.

    Returns:
        Token ids, int64 ``[B]``.
    """
    probabilities = torch.softmax(scores, dim=-1)
    return torch.multinomial(probabilities, num_samples=1).squeeze(1)


def multinomial_several(scores: Tensor, count: int, position: int) -> Tensor:
    """Draw from softmax(scores) without replacement, with torch's global generator.

    Args:
        scores: float32 ``[B, M]``.
        count: How many to draw.
        position: Not used.

    Returns:
        Indices, int64 ``[B, count]``, in the order in which they were drawn.
    """
    return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=count)
