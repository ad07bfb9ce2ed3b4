"""Processors that act on the end token, or at a given length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError, InvalidScoresError
from asyncgen.generation.logits.bans import TimedBan, TokenIds, VocabularyIds, token_list
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    Stage,
    check_count,
    is_finite,
    round_to_dtype,
)
from asyncgen.generation.logits.batched import Ban, BatchScores, Force, RowProcessor
from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    from asyncgen.generation.logits.base import Parameter


_FARTHEST = 2**31
_NEEDS_LENGTH = "needs `max_length` or `max_new_tokens`"
_NEEDS_END = "needs an end token; set `eos_token_id`"


def force(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Leave only the given tokens, all equally likely.

    Args:
        scores: [B, V].
        token_ids: Ids below V, int64 [N].

    Returns:
        [B, V]: 0 for them and -inf for all others.
    """
    return torch.full_like(scores, -torch.inf).index_fill_(-1, token_ids, 0.0)


def raise_end_scores(scores: Tensor, end_ids: Tensor, share: Parameter) -> Tensor:
    """Raise the end tokens' scores by a share of their size (`score_increase`).

    Args:
        scores: [B, V].
        end_ids: Ids below V, int64 [N].
        share: ``factor ** overdue - 1``, which grows exponentially with the tokens since the
            penalty set in; 0 changes nothing. Scalar or [B, 1].

    Returns:
        [B, V].
    """
    ends = scores.index_select(-1, end_ids)
    return scores.index_add(-1, end_ids, score_increase(ends, share))


def score_increase(scores: Tensor, share: Parameter) -> Tensor:
    """Return what to add so that scores rise by a share of their size, in any shape.

    Args:
        scores: [...].
        share: Of the size, at least 0 where scores are to rise. Scalar, or broadcasting.

    Returns:
        [...]; 0 for what is banned: -inf plus inf would be NaN.
    """
    return (scores.abs() * round_to_dtype(share, scores)).masked_fill(scores.isneginf(), 0.0)


class MinLengthLogitsProcessor(TimedBan):
    """Bans the end before a length that includes the prompt."""

    definition = Definition(
        Stage.PROCESSOR,
        90,
        "min_length",
        off=0,
        is_on=lambda length: length > 0,
        needs_eos=True,
        build=lambda kind, length, setting: kind(length, setting.eos_token_ids, setting.device),
        batched=Ban,
    )

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

    def due(self, length: int) -> VocabularyIds | None:
        """Return the end tokens of a row that is too short."""
        return self.eos_token_id if length < self.min_length else None


class MinNewTokensLengthLogitsProcessor(TimedBan):
    """Bans the end before a number of new tokens."""

    definition = Definition(
        Stage.PROCESSOR,
        100,
        "min_new_tokens",
        off=0,
        is_on=lambda count: count > 0,
        needs_eos=True,
        build=lambda kind, count, setting: kind(
            setting.prompt_length, count, setting.eos_token_ids, setting.device
        ),
        batched=Ban,
    )

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

    def due(self, length: int) -> VocabularyIds | None:
        """Return the end tokens of a row with too few new ones."""
        is_short = length - self.prompt_length_to_skip < self.min_new_tokens
        return self.eos_token_id if is_short else None


class _ForcedTokenProcessor(LogitsProcessor):
    """Forces tokens at one length (`force`)."""

    def forced(self, length: int) -> list[int] | None:
        """Return the tokens to force where so many are there; None: there are none."""
        raise NotImplementedError

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Force the tokens where they are due; ids are int64 [B, T], scores [B, V]."""
        tokens = self.forced(input_ids.shape[-1])
        return scores if tokens is None else force(scores, host_ints(tokens).to(scores.device))


def _ends_fit(processor: Any, size: int) -> bool:
    # Places beyond a row would be its neighbour's; the processor itself raises.
    return all(token < size for token in processor.eos_token_id.tolist())


class ForcedBOSTokenLogitsProcessor(_ForcedTokenProcessor):
    """Forces the token after the first one, for encoder-decoder models."""

    definition = Definition(
        Stage.PROCESSOR,
        120,
        "forced_bos_token_id",
        batched=Force,
        fits=lambda own, size: isinstance(own.bos_token_id, int) and 0 <= own.bos_token_id < size,
    )

    def __init__(self, bos_token_id: int) -> None:
        """Keep the token.

        Args:
            bos_token_id: The token to force, below V.

        Raises:
            InvalidRequestError: It is not one token id.
        """
        listed = token_list(bos_token_id)
        if len(listed) != 1:
            raise InvalidRequestError("bos_token_id", bos_token_id, "must be one token id")
        self.bos_token_id = listed[0]

    def forced(self, length: int) -> list[int] | None:
        """Return the token at length 1."""
        return [self.bos_token_id] if length == 1 else None


class ForcedEOSTokenLogitsProcessor(_ForcedTokenProcessor):
    """Forces the last token of the longest sequence allowed."""

    definition = Definition(
        Stage.PROCESSOR,
        130,
        "forced_eos_token_id",
        build=lambda kind, tokens, setting: kind(
            setting.needed(setting.config.max_length, "forced_eos_token_id", _NEEDS_LENGTH),
            tokens,
            setting.device,
        ),
        batched=Force,
        fits=_ends_fit,
    )

    def __init__(
        self, max_length: int, eos_token_id: TokenIds, device: str | torch.device = "cpu"
    ) -> None:
        """Check the tokens.

        Args:
            max_length: The longest sequence, prompt included.
            eos_token_id: The token or tokens to force, below V.
            device: Where the ids are kept.

        Raises:
            InvalidRequestError: A token id is negative, or ``max_length`` is no integer of at least
                0.
        """
        self.max_length = check_count("max_length", max_length, least=0)
        self.eos_token_id = _end_ids(eos_token_id, device)

    def forced(self, length: int) -> list[int] | None:
        """Return the end tokens at the last step."""
        return self.eos_token_id.tolist() if length == self.max_length - 1 else None


class _BatchedDecay:
    """Raises the scores of several rows' end tokens, in place."""

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        """Lay out where the end tokens are."""
        self._parts = parts
        self._ends = [
            [part.row * scores.size + token for token in part.processor.eos_token_id.tolist()]
            for part in parts
        ]

    def __call__(self, scores: BatchScores) -> None:
        """Raise those of rows that are over their time."""
        places: list[int] = []
        shares: list[float] = []
        for (row, processor), ends in zip(self._parts, self._ends, strict=True):
            with scores.guarded(row):
                share = processor.share(len(scores.rows[row].tokens))
                if share is not None:
                    places += ends
                    shares += [share] * len(ends)
        if places:
            where = scores.tensor(places)
            raised = score_increase(scores.flat[where], scores.tensor(shares, scores.values.dtype))
            scores.flat.index_add_(0, where, raised)


class ExponentialDecayLengthPenalty(LogitsProcessor):
    """Raises the end token's score ever more from some length on (`raise_end_scores`)."""

    definition = Definition(
        Stage.PROCESSOR,
        150,
        "exponential_decay_length_penalty",
        build=lambda kind, pair, setting: kind(
            pair,
            setting.needed(setting.eos_token_ids, "exponential_decay_length_penalty", _NEEDS_END),
            setting.prompt_length,
        ),
        batched=_BatchedDecay,
        fits=_ends_fit,
    )

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
            InvalidRequestError: The first is no pair of numbers, a token id is negative, or the
                length is no integer of at least 0.
        """
        pair = exponential_decay_length_penalty
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            allowed = "must be a pair (start, factor)"
            raise InvalidRequestError("exponential_decay_length_penalty", pair, allowed)
        start, factor = pair
        if isinstance(start, bool) or not isinstance(start, int) or abs(start) > _FARTHEST:
            allowed = f"its start must be a whole number from {-_FARTHEST} to {_FARTHEST}"
            raise InvalidRequestError("exponential_decay_length_penalty", pair, allowed)
        if not is_finite(factor):
            allowed = "its factor must be a finite number"
            raise InvalidRequestError("exponential_decay_length_penalty", pair, allowed)
        length = check_count("input_ids_seq_length", input_ids_seq_length, least=0)
        self.regulation_start = start + length
        self.regulation_factor = float(factor)
        self.eos_token_id = _end_ids(eos_token_id, "cpu")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `raise_end_scores`; ids are int64 [B, T], scores [B, V]."""
        share = self.share(input_ids.shape[-1])
        if share is None:
            return scores
        ends = self.eos_token_id = self.eos_token_id.to(scores.device)
        return raise_end_scores(scores, ends, share)

    def share(self, length: int) -> float | None:
        """Return the share of their size by which scores rise at a length; None before that.

        Raises:
            InvalidScoresError: It is beyond a float.
        """
        overdue = length - self.regulation_start
        if overdue <= 0:
            return None
        try:
            return self.regulation_factor**overdue - 1
        except OverflowError:
            raise InvalidScoresError(
                "ExponentialDecayLengthPenalty",
                f"ExponentialDecayLengthPenalty: {self.regulation_factor} to the power of"
                f" {overdue} is beyond a number; give `exponential_decay_length_penalty` a factor"
                " nearer to 1",
            ) from None


def _end_ids(value: TokenIds, device: str | torch.device) -> Tensor:
    listed = token_list(value)
    if any(token < 0 for token in listed):
        raise InvalidRequestError("eos_token_id", listed, "token ids must not be negative")
    return torch.tensor(listed, dtype=torch.int64, device=device)
