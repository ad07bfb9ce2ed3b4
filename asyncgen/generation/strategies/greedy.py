"""Greedy decoding: the most probable token, every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.generation.strategies.finite import require_finite
from asyncgen.generation.strategies.token_by_token import token_by_token

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps

__all__ = ["greedy", "most_probable"]


def greedy(plan: Plan) -> Steps:
    """Decode with the highest score at every position.

    Raises:
        FloatingPointError: A row of scores holds NaN, or bans every token.
    """
    return token_by_token(plan, most_probable)


def most_probable(scores: Tensor, position: int) -> Tensor:
    """Ids ``[B]`` of the highest scores ``[B, V]``.

    Raises:
        FloatingPointError: A row holds NaN, or bans every token.
    """
    best, tokens = scores.max(dim=-1)
    require_finite(best, position)
    return tokens
