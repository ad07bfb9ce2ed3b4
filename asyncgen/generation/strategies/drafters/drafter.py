"""What assisted generation asks of whatever guesses tokens ahead.

A drafter may be wrong: every guess is checked by the model, so it decides about speed alone.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Drafter", "Drafting", "Proposal"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may come next.

    Attributes:
        token_ids: The guesses in order, int64 ``[n]``; n may be 0.
        scores: Log-probabilities, up to a constant, of the distribution that each guess was drawn
            from, float32 ``[n, V]``; ``None`` where it was not drawn at random.
    """

    token_ids: Tensor
    scores: Tensor | None = None


Drafting: TypeAlias = Generator[None, None, Proposal]
"""A proposal in the making: yields after each bounded piece of work, returns the proposal."""


class Drafter(Protocol):
    """Guesses the next tokens of one sequence, round after round."""

    def propose(self, ids: Tensor, room: int) -> Drafting:
        """Guess what follows.

        Args:
            ids: Everything settled so far, int64 ``[1, T]``; it grows from round to round. The
                memory is the caller's: a view, to be read before the generator ends.
            room: Most tokens that are of use, at least 1.
        """

    def update(self, accepted: int) -> None:
        """Learn how many of the first guesses of the last proposal were right."""
