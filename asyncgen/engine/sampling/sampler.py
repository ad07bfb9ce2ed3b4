"""Picks the next token of every row of the shared batch, each with parameters of its own.

The result of a row is bit for bit what it is for the row alone. It knows logits and rows; not
where the logits come from, nor what becomes of the tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from asyncgen.engine.sampling.draws import HashDraws
from asyncgen.engine.sampling.layout import BatchLayout
from asyncgen.engine.sampling.logprobs import RawLogprobs, raw_logprobs
from asyncgen.engine.sampling.maxima import argmax
from asyncgen.engine.sampling.scores import BatchScores
from asyncgen.generation.logits import raise_named
from asyncgen.transfer import Readback, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.engine.sampling.row import SamplerRow

__all__ = ["BatchSampler", "Picking", "Sampled"]


@dataclass(slots=True)
class Sampled:
    """What one step picked.

    Attributes:
        token_ids: The token of each row; None where the row failed.
        failures: Row number and error of the rows that failed, alone.
        logprobs: Row number and log-probabilities of the rows that asked for them.
        scores: Row number and processed scores, float32 [1, V], of the rows whose stopping
            criteria look at tensors.
    """

    token_ids: list[int | None]
    failures: dict[int, Exception] = field(default_factory=dict)
    logprobs: dict[int, RawLogprobs] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)


class BatchSampler:
    """The sampler of the shared batch."""

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        """Keep what all steps have in common.

        Args:
            vocab_size: V of the logits.
            device: Where they are.
        """
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._draws = HashDraws(vocab_size, self.device)
        self._layout: BatchLayout | None = None

    @torch.no_grad()
    def sample(self, logits: Tensor, rows: Sequence[SamplerRow]) -> Sampled:
        """Pick one token for each row.

        Args:
            logits: Raw logits, [R, V] of any floating dtype; not modified.
            rows: Whose logits they are, in order.

        Returns:
            The tokens, and what went wrong.
        """
        if not rows:
            return Sampled([])
        scores, layout = self._begin(logits, rows)
        for stage in layout.stages:
            stage(scores)
        return self._conclude(scores, layout, self._pick(scores, layout))

    @torch.no_grad()
    def start(self, logits: Tensor, rows: Sequence[SamplerRow]) -> Picking:
        """As `sample`, without waiting for the device to be done.

        Args:
            logits: As of `sample`; kept until the tokens are read.
            rows: At least one.

        Returns:
            What `finish` is to be called with.
        """
        scores, layout = self._begin(logits, rows)
        for stage in layout.stages:
            stage(scores)
        order, pairs = self._pairs(scores, layout)
        settled = not (layout.needs_host or scores.failures or scores.apart)
        return Picking(scores, layout, order, pairs, settled)

    @torch.no_grad()
    def finish(self, picking: Picking) -> Sampled:
        """Wait for the tokens and say what `sample` says."""
        return self._conclude(picking.scores, picking.layout, picking.wait())

    def _conclude(
        self, scores: BatchScores, layout: BatchLayout, picked: Sequence[Sequence[float]]
    ) -> Sampled:
        """Name the tokens and what went wrong."""
        rows = scores.rows
        sampled = Sampled([None] * len(rows))
        failures, apart, token_ids = scores.failures, scores.apart, sampled.token_ids
        sampled.failures = failures
        for number, (token, height) in enumerate(picked):
            if number in failures:
                continue
            if number in apart:
                with scores.guarded(number):
                    token_ids[number] = self._pick_apart(number, scores)
            elif math.isfinite(height):
                token_ids[number] = int(token)
            else:
                with scores.guarded(number):
                    failures[number] = rows[number].failure(scores.raw(number), height)
        for number in layout.judged:
            if number not in failures:
                sampled.scores[number] = apart.get(number, scores.values[number : number + 1])
        if layout.explained:
            self._add_logprobs(sampled, scores.logits, rows, layout.explained)
        return sampled

    def _begin(self, logits: Tensor, rows: Sequence[SamplerRow]) -> tuple[BatchScores, BatchLayout]:
        """Lay out a step; the parameters only where the rows are others than at the last one."""
        layout = self._layout
        if layout is not None and layout.is_for(rows):
            return BatchScores(logits, rows, own=bool(layout.stages)), layout
        scores = BatchScores(logits, rows, own=False)
        layout = self._layout = BatchLayout(scores)
        return BatchScores(logits, rows, own=bool(layout.stages)), layout

    def _pick(self, scores: BatchScores, layout: BatchLayout) -> Sequence[Sequence[float]]:
        """Pick from processed scores: the token of each row, and its score: it must be finite."""
        rows, device = scores.rows, scores.logits.device
        if len(layout.greedy) == len(rows) and device.type == "cpu":
            best, tokens = argmax(scores.values)
            return list(zip(tokens.tolist(), best.tolist(), strict=True))
        # The one synchronisation of a step.
        order, pairs = self._pairs(scores, layout)
        return _in_order(order, pairs.T.tolist())

    def _pairs(self, scores: BatchScores, layout: BatchLayout) -> tuple[list[int], Tensor]:
        """Pick: the rows in an order of its own, and token and score of each, float64 [2, R]."""
        rows, device = scores.rows, scores.logits.device
        found: list[tuple[list[int], Tensor, Tensor]] = []
        if layout.greedy:
            found.append((layout.greedy, *argmax(_of(scores.values, layout.greedy))))
        keys = to_device(torch.tensor([row.key for row in rows]), device)
        if layout.drawn:
            some = _of(scores.values, layout.drawn)
            tokens, best = self._draws(some, _of(keys, layout.drawn))
            found.append((layout.drawn, best, tokens))
        if layout.listed:
            some = _of(scores.values, layout.listed)
            tokens, best = layout.shortlist.draw(some, _of(keys, layout.listed), self._draws)
            found.append((layout.listed, best, tokens))
        # Float64 holds every token id.
        pairs = [torch.stack((tokens.double(), best.double())) for _, best, tokens in found]
        order = [number for numbers, _, _ in found for number in numbers]
        return order, torch.cat(pairs, dim=1)

    @staticmethod
    def _pick_apart(number: int, scores: BatchScores) -> int:
        """Pick for a row that left the others, in the dtype of its scores."""
        row = scores.rows[number]
        try:
            return row.pick(scores.apart[number])
        except FloatingPointError as error:
            raise_named(row.processors, error)

    @staticmethod
    def _add_logprobs(
        sampled: Sampled, logits: Tensor, rows: Sequence[SamplerRow], explained: list[int]
    ) -> None:
        """Log-probabilities of the raw distribution, for the rows that ask."""
        asking = [
            (number, token, rows[number].top_logprobs)
            for number in explained
            if (token := sampled.token_ids[number]) is not None
        ]
        if asking:
            numbers, tokens, top = map(list, zip(*asking, strict=True))
            found = raw_logprobs(logits[numbers].float(), tokens, top)
            sampled.logprobs = dict(zip(numbers, found, strict=True))


class Picking:
    """Tokens of a step that the device is picking.

    Attributes:
        scores: As far as they were processed, and the raw logits.
        layout: What the rows have asked for.
        is_settled: Whether the tokens on the device are final; if not, `BatchSampler.finish` has
            things to do for some row before its token is known.
    """

    def __init__(
        self,
        scores: BatchScores,
        layout: BatchLayout,
        order: list[int],
        pairs: Tensor,
        is_settled: bool,
    ) -> None:
        """Begin to read them back.

        Args:
            scores: As the attribute.
            layout: As the attribute.
            order: Number of the row of each pair.
            pairs: Tokens and their scores, float64 [2, R].
            is_settled: As the attribute.
        """
        self.scores, self.layout, self.is_settled = scores, layout, is_settled
        self._order, self._pairs = order, pairs
        self._back = Readback(pairs)

    def tokens(self) -> Tensor:
        """Ids on the device, int64 [R]; of rows that will fail any valid ones."""
        # Where there is nothing to pick from the number may be any.
        tokens = self._pairs[0].clamp(0, self.scores.size - 1).long()
        if self._order == list(range(len(self._order))):
            return tokens
        places = to_device(torch.tensor(self._order), tokens.device)
        return torch.empty_like(tokens).index_copy_(0, places, tokens)

    def wait(self) -> Sequence[Sequence[float]]:
        """Wait for the token of each row, and its score."""
        return _in_order(self._order, self._back.wait().T.tolist())


def _in_order(order: list[int], pairs: list[list[float]]) -> list[list[float]]:
    """Sort pairs by the numbers of their rows."""
    picked = dict(zip(order, pairs, strict=True))
    return [picked[number] for number in range(len(order))]


def _of(values: Tensor, rows: list[int]) -> Tensor:
    """Some rows of a tensor, [R, ...]; the tensor itself where it is all of them."""
    if len(rows) == len(values):
        return values
    if values.is_cuda:  # which would wait for the list to be there
        return values.index_select(0, to_device(torch.tensor(rows), values.device))
    return values[rows]
