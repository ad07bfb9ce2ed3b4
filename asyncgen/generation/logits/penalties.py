"""Penalties on tokens that are already there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessor, check_count

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.logits.base import Parameter

__all__ = ["RepetitionPenaltyLogitsProcessor", "penalize_repetition"]


def penalize_repetition(scores: Tensor, input_ids: Tensor, penalty: Parameter) -> Tensor:
    """Make tokens that occur less likely: divide positive scores, multiply negative ones.

    Keskar et al. 2019, arXiv 1909.05858, section 4.1. However often it occurs, a token is
    penalised once.

    Args:
        scores: [B, V].
        input_ids: Tokens to penalise, int64 [B, T].
        penalty: Above 0; 1.0 changes nothing, below 1 rewards. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    there = scores.gather(1, input_ids)
    return scores.scatter(1, input_ids, torch.where(there < 0, there * penalty, there / penalty))


class RepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Penalises tokens of prompt and output (`penalize_repetition`)."""

    def __init__(self, penalty: float, prompt_ignore_length: int | Tensor | None = None) -> None:
        """Check the parameters.

        Args:
            penalty: A float above 0; 1.0 changes nothing.
            prompt_ignore_length: Tokens at the beginning that do not count as occurring; one
                number, or int64 [B] with one a row, such as its left padding.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        if not isinstance(penalty, float) or not penalty > 0:
            raise InvalidRequestError("penalty", penalty, "must be a float above 0")
        if prompt_ignore_length is not None and not isinstance(prompt_ignore_length, torch.Tensor):
            check_count("prompt_ignore_length", prompt_ignore_length, least=0)
        self.penalty = penalty
        self.prompt_ignore_length = prompt_ignore_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `penalize_repetition`; ids are int64 [B, T], scores [B, V]."""
        ignored = self.prompt_ignore_length
        if isinstance(ignored, torch.Tensor):
            # The last token counts in any case, so it can stand where none counts.
            places = torch.arange(input_ids.shape[1], device=input_ids.device)
            counts = places >= ignored.to(input_ids.device)[:, None]
            input_ids = torch.where(counts, input_ids, input_ids[:, -1:])
        elif ignored:
            input_ids = input_ids[:, ignored:]
        return penalize_repetition(scores, input_ids, self.penalty)
