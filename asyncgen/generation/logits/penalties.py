"""Penalties on tokens that are already there."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    Stage,
    as_float,
    check_count,
    check_ids,
    check_positive,
    is_finite,
    round_to_dtype,
)
from asyncgen.generation.logits.filters import divide
from asyncgen.generation.logits.sequence_memory import (
    Memories,
    RecentTokens,
    SeenTokens,
    with_fresh_memory,
)
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import host_ints, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.generation.logits.base import BuildContext, Parameter
    from asyncgen.generation.logits.batched import BatchScores, RowProcessor


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
    return scores.scatter(1, input_ids, scale_by_penalty(there, penalty))


def scale_by_penalty(scores: Tensor, penalty: Parameter) -> Tensor:
    """Divide positive scores by a penalty and multiply negative ones, in any shape.

    Args:
        scores: [...].
        penalty: Above 0. Scalar, or of a shape that broadcasts.

    Returns:
        [...].
    """
    lower = scores * round_to_dtype(penalty, scores)
    return torch.where(scores < 0, lower, divide(scores, penalty))


def penalize_presence(scores: Tensor, counts: Tensor, penalty: Parameter) -> Tensor:
    """Subtract a penalty from every token that occurs, however often.

    As the API of OpenAI defines ``presence_penalty``.

    Args:
        scores: Of tokens that occur or may occur, [...].
        counts: How often each of them occurs, [...].
        penalty: 0.0 changes nothing, below 0 rewards. Scalar, or broadcasting.

    Returns:
        [...].
    """
    return scores - (counts > 0) * round_to_dtype(penalty, scores)


def penalize_frequency(scores: Tensor, counts: Tensor, penalty: Parameter) -> Tensor:
    """Subtract a penalty from every token once for each time it occurs.

    As the API of OpenAI defines ``frequency_penalty``.

    Args:
        scores: Of tokens that occur or may occur, [...].
        counts: How often each of them occurs, [...].
        penalty: 0.0 changes nothing, below 0 rewards. Scalar, or broadcasting.

    Returns:
        [...].
    """
    return scores - counts * round_to_dtype(penalty, scores)


class _SeenTokensLayout:
    """Places and counts of the tokens that rows have seen."""

    def __init__(
        self, memories: Sequence[SeenTokens], device: torch.device, offsets: Tensor | None
    ) -> None:
        """Lay out what was seen.

        Args:
            memories: Of N rows.
            device: Where the scores are.
            offsets: Where the N rows begin in the flattened scores, int64 [N]; None for one row
                at their beginning.
        """
        lengths = [len(seen.token_ids) for seen in memories]
        self.total = sum(lengths)
        if not self.total:
            return
        self._lengths = to_device(host_ints(lengths), device)
        tokens = bytearray().join([seen.token_ids for seen in memories])
        counts = bytearray().join([seen.counts for seen in memories])
        self.places = to_device(torch.frombuffer(tokens, dtype=torch.int64), device)
        if offsets is not None:
            self.places += self.each(offsets)
        self.counts = to_device(torch.frombuffer(counts, dtype=torch.float32), device)

    def each(self, values: Tensor) -> Tensor:
        """Repeat a value of each row, [N], for all that it has seen."""
        return values.repeat_interleave(self._lengths, output_size=self.total)


_NO_TOKENS = SeenTokens()


def _memory(start: int, last_n: int | None) -> SeenTokens:
    """Return a memory of the tokens behind some, or of the last of them."""
    return SeenTokens(start) if last_n is None else RecentTokens(last_n, start)


def _check_last(last_n: int | None) -> None:
    if last_n is not None:
        check_count("last_n", last_n, least=0)


def _last_n(setting: BuildContext) -> int | None:
    """Return how many of the last tokens are penalised; None for all of them."""
    last_n: int | None = setting.value("repeat_last_n")
    return None if last_n == -1 else last_n


class _BatchedPenalty:
    """Penalises what several rows have seen, in place."""

    def __init__(self, parts: list[RowProcessor], scores: BatchScores) -> None:
        """Lay the penalties out."""
        self._parts = parts
        self._penalties = scores.tensor([part.processor.penalty for part in parts], torch.float64)
        self._offsets = scores.tensor([part.row * scores.size for part in parts])

    def __call__(self, scores: BatchScores) -> None:
        """Penalise what each row has seen so far."""
        memories = [_NO_TOKENS] * len(self._parts)
        for number, (row, processor) in enumerate(self._parts):
            try:
                memories[number] = processor.seen(scores.rows[row].tokens, scores.size)
            except BaseException as error:
                scores.failures.setdefault(row, request_failure(error))
        seen = _SeenTokensLayout(memories, scores.values.device, self._offsets)
        if seen.total:
            change = self._parts[0].processor.change
            flat, penalties = scores.flat, seen.each(self._penalties)
            flat[seen.places] = change(flat[seen.places], seen.counts, penalties)


class _SeenTokensProcessor(LogitsProcessor):
    """Changes the scores of tokens that are already there, at the cost of what changed.

    Attributes:
        penalty: How much.
        memories: What is there.
    """

    penalty: float
    memories: Memories[SeenTokens]

    @staticmethod
    def change(scores: Tensor, counts: Tensor, penalty: Parameter) -> Tensor:
        """Penalise scores of tokens that occur so often."""
        raise NotImplementedError

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `change` to what is there; ids are int64 [B, T], scores [B, V]."""
        offsets = None
        if len(scores) > 1:
            offsets = (
                torch.arange(len(scores), dtype=torch.int64, device=scores.device)
                * scores.shape[-1]
            )
        memories = [_within(each, scores.shape[-1]) for each in self.memories.of(input_ids)]
        seen = _SeenTokensLayout(memories, scores.device, offsets)
        if not seen.total:
            return scores
        flat = scores.flatten()
        changed = self.change(flat[seen.places], seen.counts.to(scores.dtype), self.penalty)
        return flat.index_put((seen.places,), changed).view_as(scores)

    def seen(self, token_ids: list[int], size: int) -> SeenTokens:
        """Return what is there in one row of a batch.

        Raises:
            IndexError: A token is not of the vocabulary.
        """
        return _within(self.memories.of_list(token_ids), size)


class RepetitionPenaltyLogitsProcessor(_SeenTokensProcessor):
    """Penalises tokens of prompt and output (`scale_by_penalty`)."""

    definition = Definition(
        Stage.PROCESSOR,
        50,
        "repetition_penalty",
        off=1.0,
        build=lambda kind, penalty, setting: kind(
            as_float(penalty),
            setting.padding,
            tail_only=setting.tail_only,
            last_n=_last_n(setting),
        ),
        batched=_BatchedPenalty,
        for_sample=with_fresh_memory,
        fits=lambda own, _: not isinstance(own.prompt_ignore_length, Tensor),
    )

    def __init__(
        self,
        penalty: float,
        prompt_ignore_length: int | Tensor | None = None,
        *,
        tail_only: bool = False,
        last_n: int | None = None,
    ) -> None:
        """Check the parameters.

        Args:
            penalty: A float above 0; 1.0 changes nothing.
            prompt_ignore_length: Tokens at the beginning that do not count as occurring; one
                number, or int64 [B] with one a row, such as its left padding.
            tail_only: Promise that rows only ever change at their end; see `RowTracker`.
            last_n: Tokens at the end that count as occurring; None for all.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        self.penalty = check_positive("penalty", penalty)
        ignored = prompt_ignore_length
        if isinstance(ignored, Tensor):
            check_ids("prompt_ignore_length", ignored)
        elif ignored is not None:
            check_count("prompt_ignore_length", ignored, least=0)
        self.prompt_ignore_length = ignored
        _check_last(last_n)
        self.memories = Memories(
            lambda row: _memory(
                int(ignored[row]) if isinstance(ignored, Tensor) else ignored or 0, last_n
            ),
            tail_only=tail_only,
        )

    @staticmethod
    def change(scores: Tensor, counts: Tensor, penalty: Parameter) -> Tensor:
        """Apply `scale_by_penalty`, however often the tokens occur."""
        return scale_by_penalty(scores, penalty)


class EncoderRepetitionPenaltyLogitsProcessor(LogitsProcessor):
    """Makes tokens of the encoder's input, or of a prompt, more likely (`penalize_repetition`)."""

    definition = Definition(
        Stage.PROCESSOR,
        40,
        "encoder_repetition_penalty",
        off=1.0,
        build=lambda kind, penalty, setting: kind(
            as_float(penalty), setting.encoder_ids("encoder_repetition_penalty")
        ),
        batched=_BatchedPenalty,
        fits=lambda own, _: len(own.encoder_input_ids) == 1,
    )

    def __init__(self, penalty: float, encoder_input_ids: Tensor) -> None:
        """Check the penalty.

        Args:
            penalty: A float above 0; 1.0 changes nothing, above 1 rewards the tokens.
            encoder_input_ids: The tokens that are meant, int64 [B, T].

        Raises:
            InvalidRequestError: The penalty is out of range, or the tokens are no tensor of
                integers.
        """
        self.penalty = 1 / check_positive("penalty", penalty)
        self.encoder_input_ids = check_ids("encoder_input_ids", encoder_input_ids)

    change = staticmethod(RepetitionPenaltyLogitsProcessor.change)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Apply `penalize_repetition`; scores are [B, V].

        B is the number of encoder rows, or a multiple of it where each has several beams.
        """
        ids = self.encoder_input_ids.to(scores.device)
        each = max(scores.shape[0] // ids.shape[0], 1)
        return penalize_repetition(scores, ids.repeat_interleave(each, dim=0), self.penalty)

    def seen(self, token_ids: list[int], size: int) -> SeenTokens:
        """Return what is meant in a row of a batch, whose prompt is the only one.

        Raises:
            IndexError: A token is not of the vocabulary.
        """
        return _within(self._encoder_tokens, size)

    @functools.cached_property
    def _encoder_tokens(self) -> SeenTokens:
        return SeenTokens(tokens=self.encoder_input_ids[0].tolist())


class _CountsProcessor(_SeenTokensProcessor):
    """Changes the scores of generated tokens."""

    def __init__(
        self,
        penalty: float,
        prompt_length: int = 0,
        *,
        tail_only: bool = False,
        last_n: int | None = None,
    ) -> None:
        """Check the penalty.

        Args:
            penalty: A finite number; 0 changes nothing, below 0 rewards.
            prompt_length: Tokens at the beginning that do not count, padding included.
            tail_only: Promise that rows only ever change at their end; see `RowTracker`.
            last_n: Tokens at the end that count; None for all.

        Raises:
            InvalidRequestError: One of them is out of range.
        """
        if not is_finite(penalty):
            raise InvalidRequestError("penalty", penalty, "must be a finite number")
        self.penalty = float(penalty)
        self.prompt_length = check_count("prompt_length", prompt_length, least=0)
        _check_last(last_n)
        self.memories = Memories(lambda _: _memory(prompt_length, last_n), tail_only=tail_only)


def _generated_tokens_definition(rank: int, parameter: str) -> Definition:
    """Define a penalty on generated tokens."""
    return Definition(
        Stage.PROCESSOR,
        rank,
        parameter,
        off=0.0,
        build=lambda kind, penalty, setting: kind(
            penalty,
            setting.prompt_length if setting.value("repeat_last_n") is None else 0,
            tail_only=setting.tail_only,
            last_n=_last_n(setting),
        ),
        batched=_BatchedPenalty,
        for_sample=with_fresh_memory,
    )


class PresencePenaltyLogitsProcessor(_CountsProcessor):
    """Penalises generated tokens, however often they occur (`penalize_presence`)."""

    definition = _generated_tokens_definition(180, "presence_penalty")
    change = staticmethod(penalize_presence)


class FrequencyPenaltyLogitsProcessor(_CountsProcessor):
    """Penalises generated tokens for each time they occur (`penalize_frequency`)."""

    definition = _generated_tokens_definition(190, "frequency_penalty")
    change = staticmethod(penalize_frequency)


def _within(seen: SeenTokens, size: int) -> SeenTokens:
    if seen.largest >= size:
        raise IndexError(f"token {seen.largest} is not below the {size} scores")
    return seen
