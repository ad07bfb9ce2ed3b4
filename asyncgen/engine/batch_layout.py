"""Sorts the processors of a set of rows into stages, each of which runs over many rows at once.

A row's processors keep their order, which is the documented one for all rows alike. What has no
vectorised form, and what users wrote, runs row by row in its place.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.engine.batch_filters import PARAMETERS, FilterRows
from asyncgen.engine.edits import EDITS, Part
from asyncgen.engine.shortlist import Shortlist, is_listable
from asyncgen.generation.logits import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from asyncgen.generation.watermarking.greenlist import WatermarkLogitsProcessor
from asyncgen.generation.watermarking.synthid import SynthIDTextWatermarkLogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.engine.batch_scores import BatchScores
    from asyncgen.engine.sampling_rows import SamplerRow

__all__ = ["BatchLayout"]

_BEFORE = (
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    SequenceBiasLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    EncoderNoRepeatNGramLogitsProcessor,
    NoBadWordsLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    ExponentialDecayLengthPenalty,
    SuppressTokensLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
)
_AFTER = (
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    MinPLogitsWarper,
    TypicalLogitsWarper,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    WatermarkLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    LogitNormalization,
)
_USER = len(_BEFORE)
_RANKS: dict[type, int] = {
    **{kind: rank for rank, kind in enumerate(_BEFORE)},
    **{kind: _USER + 1 + rank for rank, kind in enumerate(_AFTER)},
}
"""The documented order; processors that users wrote come between the two groups."""


class BatchLayout:
    """The stages of a set of rows, and how each row picks in the end.

    Attributes:
        stages: Run one after the other on the scores of a step.
        greedy: Rows that take the likeliest token.
        drawn: Rows that draw from all tokens.
        listed: Rows that draw from a few of the likeliest.
        shortlist: Their filters.
        judged: Rows with stopping criteria that look at tensors.
        explained: Rows that ask for log-probabilities.
        needs_host: Whether some row has no token before the host has done something for it: run
            what a user wrote, or describe the token.
    """

    def __init__(self, scores: BatchScores) -> None:
        """Lay the rows of a step out.

        Args:
            scores: For the rows and the vocabulary.
        """
        self.greedy: list[int] = []
        self.drawn: list[int] = []
        self.listed: list[int] = []
        filters: list[Sequence[Callable[..., Any]]] = []
        by_stage: dict[tuple[int, type], list[_Placed]] = {}
        for number, row in enumerate(scores.rows):
            placed = _placed(number, row)
            tail = [each for each in placed if each.rank > _USER]
            if row.draw is None:
                self.greedy.append(number)
            elif not row.ends.tensor_criteria and is_listable(
                [each.part.processor for each in tail], scores.values
            ):
                self.listed.append(number)
                filters.append([each.part.processor for each in tail])
                placed = placed[: len(placed) - len(tail)]
            else:
                self.drawn.append(number)
            for each in placed:
                by_stage.setdefault((each.rank, each.stage(scores.size)), []).append(each)
        self.shortlist = Shortlist(filters)
        # Of one rank are the processors of several kinds only where users wrote them.
        self._plans = sorted(by_stage.items(), key=lambda item: item[0][0])
        self.stages: list[Callable[[BatchScores], None]] = [
            kind([each.part for each in parts], scores)
            if kind is not _OneByOne
            else _OneByOne(parts)
            for (_, kind), parts in self._plans
        ]
        self._rows = list(scores.rows)
        self.judged = [at for at, row in enumerate(self._rows) if row.ends.tensor_criteria]
        self.explained = [at for at, row in enumerate(self._rows) if row.top_logprobs is not None]
        self.needs_host = bool(self.judged or self.explained) or any(
            kind is _OneByOne for (_, kind), _ in self._plans
        )

    def is_for(self, rows: Sequence[SamplerRow]) -> bool:
        """Tell whether it was made for just these rows, in this order."""
        return self._rows == list(rows)  # rows are told apart by identity


class _Placed:
    """A processor of a row and its place among all kinds."""

    __slots__ = ("number", "part", "rank")

    def __init__(self, part: Part, number: int, rank: int) -> None:
        self.part = part
        self.number = number
        self.rank = rank

    def stage(self, vocab_size: int) -> type:
        """Return what runs it."""
        kind = type(self.part.processor)
        if self.rank != _USER:
            if kind in PARAMETERS:
                return FilterRows
            edit, can_do = EDITS.get(kind, (None, None))
            if edit is not None and can_do is not None and can_do(self.part.processor, vocab_size):
                return edit
        return _OneByOne


def _placed(number: int, row: SamplerRow) -> list[_Placed]:
    """Find the rank of each processor of a row."""
    users = {id(each) for each in row.request.params.processors}
    ranks = [
        _USER if id(each) in users else _RANKS.get(type(each), _USER) for each in row.originals
    ]
    if any(first > second for first, second in itertools.pairwise(ranks)):
        # In an order of its own; then it runs in that order.
        ranks = [_USER] * len(ranks)
    return [
        _Placed(Part(number, processor, memory), place, rank)
        for place, (processor, memory, rank) in enumerate(
            zip(row.processors, row.memories, ranks, strict=True)
        )
    ]


class _OneByOne:
    """Runs the processors of rows as they are, each on its own row."""

    def __init__(self, placed: list[_Placed]) -> None:
        self._placed = placed

    def __call__(self, scores: BatchScores) -> None:
        """Run them; one that raises or spoils its scores fails its row."""
        for each in self._placed:
            row = each.part.row
            if row not in scores.failures and row not in scores.apart:
                with scores.guarded(row):
                    self._run(each, scores)

    @staticmethod
    def _run(each: _Placed, scores: BatchScores) -> None:
        number = each.part.row
        row = scores.rows[number]
        ids = row.input_ids(scores.logits.device)
        row.processors.begin(ids, scores.raw(number))
        # What users wrote may keep its scores, or write to them.
        own: Tensor = scores.values[number : number + 1].clone()
        made = row.processors.run_one(each.number, ids, own)
        if made.dtype == torch.float32:
            scores.values[number] = made[0]
            return
        # The other rows are not of this dtype, so it goes on without them.
        for place in range(each.number + 1, len(row.processors)):
            made = row.processors.run_one(place, ids, made)
        scores.apart[number] = made
