"""Greedy decoding: the most probable token, every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.generation.strategies.finite import require_finite
from asyncgen.generation.strategies.token_by_token import token_by_token

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps

__all__ = ["greedy"]


def greedy(plan: Plan) -> Steps:
    """Decode with the highest score at every position.

    Raises:
        FloatingPointError: A row of scores holds NaN, or bans every token.
    """
    return token_by_token(plan, _most_probable)


def _most_probable(scores: Tensor, position: int) -> Tensor:
    best, tokens = scores.max(dim=-1)
    require_finite(best, position)
    return tokens
