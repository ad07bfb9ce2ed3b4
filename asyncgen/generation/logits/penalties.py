"""Penalties on tokens that are already there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessor, check_count, divide, rounded
from asyncgen.generation.logits.growth import TokenCounts

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.logits.base import Parameter

__all__ = [
    "EncoderRepetitionPenaltyLogitsProcessor",
    "FrequencyPenaltyLogitsProcessor",
    "PresencePenaltyLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "penalize_frequency",
    "penalize_occurring",
    "penalize_presence",
    "penalize_repetition",
    "weaken",
]


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
    return scores.scatter(1, input_ids, weaken(there, penalty))


def weaken(scores: Tensor, penalty: Parameter) -> Tensor:
    """Divide positive scores by a penalty and multiply negative ones, in any shape.

    Args:
        scores: [...].
        penalty: Above 0. Scalar, or of a shape that broadcasts.

    Returns:
        [...].
    """
    lower = scores * rounded(penalty, scores)
    return torch.where(scores < 0, lower, divide(scores, penalty))


def penalize_occurring(scores: Tensor, counts: Tensor, penalty: Parameter) -> Tensor:
    """The same as `penalize_repetition`, where it is known already which tokens occur.

    Args:
        scores: [B, V].
        counts: How often each token occurs, [B, V].
        penalty: Above 0; 1.0 changes nothing, below 1 rewards. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    return torch.where(counts > 0, weaken(scores, penalty), scores)


def penalize_presence(scores: Tensor, counts: Tensor, penalty: Parameter) -> Tensor:
    """Subtract a penalty from every token that occurs, however often.

    As the API of OpenAI defines ``presence_penalty``.

    Args:
        scores: [B, V].
        counts: How often each token occurs, [B, V].
        penalty: 0.0 changes nothing, below 0 rewards. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    return scores - (counts > 0) * rounded(penalty, scores)


def penalize_frequency(scores: Tensor, counts: Tensor, penalty: Parameter) -> Tensor:
    """Subtract a penalty from every token once for each time it occurs.

    As the API of OpenAI defines ``frequency_penalty``.

    Args:
        scores: [B, V].
        counts: How often each token occurs, [B, V].
        penalty: 0.0 changes nothing, below 0 rewards. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    return scores - counts * rounded(penalty, scores)


class RepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Penalises tokens of prompt and output (`penalize_occurring`)."""

    def __init__(
        self,
        penalty: float,
        prompt_ignore_length: int | Tensor | None = None,
        *,
        tail_only: bool = False,
    ) -> None:
        """Check the parameters.

        Args:
            penalty: A float above 0; 1.0 changes nothing.
            prompt_ignore_length: Tokens at the beginning that do not count as occurring; one
                number, or int64 [B] with one a row, such as its left padding.
            tail_only: Promise that rows only ever change at their end; see `Growth`.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        if not isinstance(penalty, float) or not penalty > 0:
            raise InvalidRequestError("penalty", penalty, "must be a float above 0")
        if prompt_ignore_length is not None and not isinstance(prompt_ignore_length, torch.Tensor):
            check_count("prompt_ignore_length", prompt_ignore_length, least=0)
        self.penalty = penalty
        self.prompt_ignore_length = prompt_ignore_length
        self._counts = TokenCounts(tail_only=tail_only)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `penalize_occurring`; ids are int64 [B, T], scores [B, V]."""
        ignored = self.prompt_ignore_length
        first = 0 if ignored is None else ignored
        counts = self._counts.update(input_ids, scores.shape[1], first)
        return penalize_occurring(scores, counts, self.penalty)


class EncoderRepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Makes tokens of the encoder's input, or of a prompt, more likely (`penalize_repetition`)."""

    def __init__(self, penalty: float, encoder_input_ids: Tensor) -> None:
        """Check the penalty.

        Args:
            penalty: A float above 0; 1.0 changes nothing, above 1 rewards the tokens.
            encoder_input_ids: The tokens that are meant, int64 [B, T].

        Raises:
            InvalidRequestError: The penalty is out of range.
        """
        if not isinstance(penalty, float) or not penalty > 0:
            raise InvalidRequestError("penalty", penalty, "must be a float above 0")
        self.penalty = 1 / penalty
        self.encoder_input_ids = encoder_input_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `penalize_repetition`; scores are [B, V].

        B is the number of encoder rows, or a multiple of it where each has several beams.
        """
        ids = self.encoder_input_ids.to(scores.device)
        each = max(scores.shape[0] // ids.shape[0], 1)
        return penalize_repetition(scores, ids.repeat_interleave(each, dim=0), self.penalty)


class _CountsProcessor(LogitsProcessor):
    """Counts the generated tokens of every row, at the cost of what changed."""

    def __init__(self, penalty: float, prompt_length: int = 0, *, tail_only: bool = False) -> None:
        """Check the penalty.

        Args:
            penalty: A finite number; 0 changes nothing, below 0 rewards.
            prompt_length: Tokens at the beginning that do not count, padding included.
            tail_only: Promise that rows only ever change at their end; see `Growth`.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        number = isinstance(penalty, int | float) and not isinstance(penalty, bool)
        if not number or not math.isfinite(penalty):
            raise InvalidRequestError("penalty", penalty, "must be a finite number")
        self.penalty = float(penalty)
        self.prompt_length = check_count("prompt_length", prompt_length, least=0)
        self._counts = TokenCounts(tail_only=tail_only)

    def _count(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Count the generated tokens, [B, V] in the dtype of the scores."""
        counts = self._counts.update(input_ids, scores.shape[1], self.prompt_length)
        return counts.to(scores.dtype)


class PresencePenaltyLogitsProcessor(_CountsProcessor):
    """Penalises generated tokens, however often they occur (`penalize_presence`)."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `penalize_presence`; ids are int64 [B, T], scores [B, V]."""
        return penalize_presence(scores, self._count(input_ids, scores), self.penalty)


class FrequencyPenaltyLogitsProcessor(_CountsProcessor):
    """Penalises generated tokens for each time they occur (`penalize_frequency`)."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `penalize_frequency`; ids are int64 [B, T], scores [B, V]."""
        return penalize_frequency(scores, self._count(input_ids, scores), self.penalty)
