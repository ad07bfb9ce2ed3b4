"""Sorts the processors of a set of rows into stages, each of which runs over many rows at once.

A row's processors keep their order, which is the documented one for all rows alike. What has no
vectorised form, and what users wrote, runs row by row in its place.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal

import torch

from asyncgen.engine.sampling.edits import EDITS, Part
from asyncgen.engine.sampling.filters import PARAMETERS, FilterRows
from asyncgen.engine.sampling.shortlist import Shortlist, is_listable
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
    from typing import TypeAlias

    from torch import Tensor

    from asyncgen.engine.sampling.row import SamplerRow
    from asyncgen.engine.sampling.scores import BatchScores

    Processor: TypeAlias = Callable[..., Any]

__all__ = ["BatchLayout", "RowPlan"]

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
        self.judged: list[int] = []
        self.explained: list[int] = []
        self._rows = list(scores.rows)
        picked = {"greedy": self.greedy, "drawn": self.drawn, "listed": self.listed}
        filters: list[list[Processor]] = []
        by_stage: dict[tuple[int, type], list[tuple[int, _Placed]]] = {}
        for number, row in enumerate(self._rows):
            plan = row.plan
            if plan is None:
                plan = row.plan = RowPlan(row, scores)
            picked[plan.picks].append(number)
            if plan.picks == "listed":
                filters.append(plan.filters)
            for each in plan.placed:
                by_stage.setdefault((each.rank, each.stage), []).append((number, each))
            if plan.is_judged:
                self.judged.append(number)
            if row.top_logprobs is not None:
                self.explained.append(number)
        self.shortlist = Shortlist(filters)
        # Of one rank are the processors of several kinds only where users wrote them.
        stages = sorted(by_stage.items(), key=lambda item: item[0][0])
        self.stages: list[Callable[[BatchScores], None]] = [
            kind([Part(number, each.processor, each.memory) for number, each in placed], scores)
            if kind is not _OneByOne
            else _OneByOne(placed)
            for (_, kind), placed in stages
        ]
        self.needs_host = bool(self.judged or self.explained) or any(
            kind is _OneByOne for (_, kind), _ in stages
        )

    def is_for(self, rows: Sequence[SamplerRow]) -> bool:
        """Tell whether it was made for just these rows, in this order."""
        return self._rows == list(rows)  # rows are told apart by identity


class RowPlan:
    """What a row's processors amount to, found out once in its life.

    Attributes:
        placed: Its processors in their order, without ``filters``.
        picks: Which list of a `BatchLayout` it belongs to.
        filters: What works on the shortlist, of a row that is ``"listed"``.
        is_judged: Whether it has stopping criteria that look at tensors.
    """

    __slots__ = ("filters", "is_judged", "picks", "placed")

    def __init__(self, row: SamplerRow, scores: BatchScores) -> None:
        """Look at a row; ``scores`` give size and device of all its steps."""
        self.placed = _placed(row, scores.size)
        self.is_judged = bool(row.ends.tensor_criteria)
        self.filters = [each.processor for each in self.placed if each.rank > _USER]
        self.picks: Literal["greedy", "drawn", "listed"] = "greedy"
        if row.draw is not None:
            listed = not self.is_judged and is_listable(self.filters, scores.values)
            self.picks = "listed" if listed else "drawn"
            if listed:
                self.placed = self.placed[: len(self.placed) - len(self.filters)]


class _Placed:
    """A processor of a row, its place among all kinds, and what runs it."""

    __slots__ = ("memory", "number", "processor", "rank", "stage")

    def __init__(
        self, processor: Processor, memory: dict[str, Any], number: int, rank: int, vocab_size: int
    ) -> None:
        self.processor = processor
        self.memory = memory
        self.number = number
        self.rank = rank
        self.stage = self._stage(vocab_size)

    def _stage(self, vocab_size: int) -> type:
        kind = type(self.processor)
        if self.rank != _USER:
            if kind in PARAMETERS:
                return FilterRows
            edit, can_do = EDITS.get(kind, (None, None))
            if edit is not None and can_do is not None and can_do(self.processor, vocab_size):
                return edit
        return _OneByOne


def _placed(row: SamplerRow, vocab_size: int) -> list[_Placed]:
    """Find the rank of each processor of a row."""
    users = {id(each) for each in row.request.params.processors}
    ranks = [
        _USER if id(each) in users else _RANKS.get(type(each), _USER) for each in row.originals
    ]
    if any(first > second for first, second in itertools.pairwise(ranks)):
        # In an order of its own; then it runs in that order.
        ranks = [_USER] * len(ranks)
    return [
        _Placed(processor, memory, number, rank, vocab_size)
        for number, (processor, memory, rank) in enumerate(
            zip(row.processors, row.memories, ranks, strict=True)
        )
    ]


class _OneByOne:
    """Runs the processors of rows as they are, each on its own row."""

    def __init__(self, placed: list[tuple[int, _Placed]]) -> None:
        self._placed = placed

    def __call__(self, scores: BatchScores) -> None:
        """Run them; one that raises or spoils its scores fails its row."""
        for row, each in self._placed:
            if row not in scores.failures and row not in scores.apart:
                with scores.guarded(row):
                    self._run(row, each, scores)

    @staticmethod
    def _run(number: int, each: _Placed, scores: BatchScores) -> None:
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
