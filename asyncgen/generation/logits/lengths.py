"""Processors that act on the end token, or at a given length."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError, InvalidScoresError
from asyncgen.generation.logits.bans import TokenIds, VocabularyIds, suppress, token_list
from asyncgen.generation.logits.base import LogitsProcessor, check_count, rounded

if TYPE_CHECKING:
    from asyncgen.generation.logits.base import Parameter

__all__ = [
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "force",
    "forbid_end",
    "growth",
    "hasten_end",
    "rise",
]

_FARTHEST = 2**31


def forbid_end(
    scores: Tensor, end_ids: Tensor, length: int | Tensor, min_length: int | Tensor
) -> Tensor:
    """Ban the end tokens of rows that are still too short.

    Args:
        scores: [B, V].
        end_ids: Ids below V, int64 [N].
        length: Present length, a number or int64 [B, 1].
        min_length: Length from which on a row may end, a number or int64 [B, 1].

    Returns:
        [B, V].
    """
    short = length < min_length
    if isinstance(short, Tensor):
        return torch.where(short, suppress(scores, end_ids), scores)
    return suppress(scores, end_ids) if short else scores


def force(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Leave only the given tokens, all equally likely.

    Args:
        scores: [B, V].
        token_ids: Ids below V, int64 [N].

    Returns:
        [B, V]: 0 for them and -inf for all others.
    """
    return torch.full_like(scores, -torch.inf).index_fill_(-1, token_ids, 0.0)


def hasten_end(scores: Tensor, end_ids: Tensor, factor: Parameter, overdue: Parameter) -> Tensor:
    """Raise the end tokens' scores exponentially: by ``|score| * (factor ** overdue - 1)``.

    Args:
        scores: [B, V].
        end_ids: Ids below V, int64 [N].
        factor: Base of the growth. Scalar or [B, 1].
        overdue: Tokens since the penalty set in; 0 changes nothing. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    ends = scores.index_select(-1, end_ids)
    return scores.index_add(-1, end_ids, rise(ends, growth(factor, overdue)))


def growth(factor: Parameter, overdue: Parameter) -> Parameter:
    """Return ``factor ** overdue - 1``.

    Raises:
        InvalidScoresError: Of two numbers, where the power is beyond a float.
    """
    try:
        return factor**overdue - 1
    except OverflowError:
        raise InvalidScoresError(
            "ExponentialDecayLengthPenalty",
            f"ExponentialDecayLengthPenalty: {factor} to the power of {overdue} is beyond a "
            "number; give `exponential_decay_length_penalty` a factor nearer to 1",
        ) from None


def rise(scores: Tensor, share: Parameter) -> Tensor:
    """Return what to add so that scores rise by a share of their size, in any shape.

    Args:
        scores: [...].
        share: Of the size, at least 0 where scores are to rise. Scalar, or broadcasting.

    Returns:
        [...]; 0 for what is banned: -inf plus inf would be NaN.
    """
    return (scores.abs() * rounded(share, scores)).masked_fill(scores.isneginf(), 0.0)


class MinLengthLogitsProcessor(LogitsProcessor):
    """Bans the end before a length that includes the prompt (`forbid_end`)."""

    def __init__(
        self, min_length: int, eos_token_id: TokenIds, device: str | torch.device = "cpu"
    ) -> None:
        """Check the parameters.

        Args:
            min_length: Length from which on a row may end, at least 0.
            eos_token_id: Ids that end a sequence; those outside of the vocabulary have no effect.
            device: Where the ids are kept.

        Raises:
            InvalidRequestError: ``min_length`` is no integer of at least 0.
        """
        self.min_length = check_count("min_length", min_length, least=0)
        self.eos_token_id = VocabularyIds(token_list(eos_token_id), device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `forbid_end`; ids are int64 [B, T], scores [B, V]."""
        if input_ids.shape[-1] >= self.min_length:
            return scores
        ends = self.eos_token_id.within(scores)
        return forbid_end(scores, ends, input_ids.shape[-1], self.min_length)


class MinNewTokensLengthLogitsProcessor(LogitsProcessor):
    """Bans the end before a number of new tokens (`forbid_end`)."""

    def __init__(
        self,
        prompt_length_to_skip: int,
        min_new_tokens: int,
        eos_token_id: TokenIds,
        device: str | torch.device = "cpu",
    ) -> None:
        """Check the parameters.

        Args:
            prompt_length_to_skip: Length of the prompt, at least 0.
            min_new_tokens: New tokens after which a row may end, at least 0.
            eos_token_id: Ids that end a sequence; those outside of the vocabulary have no effect.
            device: Where the ids are kept.

        Raises:
            InvalidRequestError: One of the numbers is no integer of at least 0.
        """
        self.prompt_length_to_skip = check_count("prompt_length_to_skip", prompt_length_to_skip, 0)
        self.min_new_tokens = check_count("min_new_tokens", min_new_tokens, least=0)
        self.eos_token_id = VocabularyIds(token_list(eos_token_id), device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `forbid_end`; ids are int64 [B, T], scores [B, V]."""
        new_tokens = input_ids.shape[-1] - self.prompt_length_to_skip
        if new_tokens >= self.min_new_tokens:
            return scores
        ends = self.eos_token_id.within(scores)
        return forbid_end(scores, ends, new_tokens, self.min_new_tokens)


class ForcedBOSTokenLogitsProcessor(LogitsProcessor):
    """Forces the token after the first one, for encoder-decoder models (`force`)."""

    def __init__(self, bos_token_id: int) -> None:
        """Keep the token.

        Args:
            bos_token_id: The token to force, below V.
        """
        self.bos_token_id = bos_token_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Force the token at length 1; ids are int64 [B, T], scores [B, V]."""
        if input_ids.shape[-1] != 1:
            return scores
        return force(scores, torch.tensor([self.bos_token_id], device=scores.device))


class ForcedEOSTokenLogitsProcessor(LogitsProcessor):
    """Forces the last token of the longest sequence allowed (`force`)."""

    def __init__(
        self, max_length: int, eos_token_id: TokenIds, device: str | torch.device = "cpu"
    ) -> None:
        """Check the tokens.

        Args:
            max_length: The longest sequence, prompt included.
            eos_token_id: The token or tokens to force, below V.
            device: Where the ids are kept.

        Raises:
            InvalidRequestError: A token id is negative.
        """
        self.max_length = max_length
        self.eos_token_id = _ids("eos_token_id", eos_token_id, device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Force the end at the last step; ids are int64 [B, T], scores [B, V]."""
        if input_ids.shape[-1] != self.max_length - 1:
            return scores
        return force(scores, self.eos_token_id.to(scores.device))


class ExponentialDecayLengthPenalty(LogitsProcessor):
    """Raises the end token's score ever more from some length on (`hasten_end`)."""

    def __init__(
        self,
        exponential_decay_length_penalty: tuple[int, float],
        eos_token_id: TokenIds,
        input_ids_seq_length: int,
    ) -> None:
        """Check the parameters.

        Args:
            exponential_decay_length_penalty: New tokens after which it sets in, and its factor.
            eos_token_id: Ids that end a sequence, below V.
            input_ids_seq_length: Length of the prompt.

        Raises:
            InvalidRequestError: The first is no pair of numbers, or a token id is negative.
        """
        pair = exponential_decay_length_penalty
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            allowed = "must be a pair (start, factor)"
            raise InvalidRequestError("exponential_decay_length_penalty", pair, allowed)
        start, factor = pair
        if isinstance(start, bool) or not isinstance(start, int) or abs(start) > _FARTHEST:
            allowed = f"its start must be a whole number from {-_FARTHEST} to {_FARTHEST}"
            raise InvalidRequestError("exponential_decay_length_penalty", pair, allowed)
        number = isinstance(factor, int | float) and not isinstance(factor, bool)
        if not number or not abs(factor) <= sys.float_info.max:
            allowed = "its factor must be a finite number"
            raise InvalidRequestError("exponential_decay_length_penalty", pair, allowed)
        self.regulation_start = start + input_ids_seq_length
        self.regulation_factor = float(factor)
        self.eos_token_id = _ids("eos_token_id", eos_token_id, "cpu")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `hasten_end`; ids are int64 [B, T], scores [B, V]."""
        overdue = input_ids.shape[-1] - self.regulation_start
        if overdue <= 0:
            return scores
        ends = self.eos_token_id = self.eos_token_id.to(scores.device)
        return hasten_end(scores, ends, self.regulation_factor, overdue)


def _ids(name: str, value: TokenIds, device: str | torch.device) -> Tensor:
    listed = token_list(value)
    if any(token < 0 for token in listed):
        raise InvalidRequestError(name, listed, "token ids must not be negative")
    return torch.tensor(listed, dtype=torch.int64, device=device)
