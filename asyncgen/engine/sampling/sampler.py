"""Picks the next token of every row of the shared batch, each with parameters of its own.

The result of a row is bit for bit what it is for the row alone. It knows logits and rows; not
where the logits come from, nor what becomes of the tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from asyncgen.engine.sampling.logprobs import RawLogprobs, raw_logprobs
from asyncgen.engine.sampling.random_draws import HashDraws, argmax
from asyncgen.engine.sampling.score_batch import BatchLayout, BatchScores
from asyncgen.generation.logits.checked import raise_named
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.transfer import Readback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from asyncgen.engine.batch.sequence import Sequence


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

    def forget(self) -> None:
        """Let go of the rows of the last step."""
        self._layout = None

    @torch.no_grad()
    def sample(self, logits: Tensor, rows: list[Sequence]) -> Sampled:
        """Pick one token for each row.

        Args:
            logits: Raw logits, [R, V] of any floating dtype; not modified.
            rows: Whose logits they are, in order.

        Returns:
            The tokens, and what went wrong.
        """
        if not rows:
            return Sampled([])
        scores, layout = self._process(logits, rows)
        if len(layout.greedy) == len(rows) and logits.device.type == "cpu":
            # What nobody processes is looked at as it is.
            best, tokens = argmax(scores.values if layout.steps else logits)
            return self._conclude(scores, layout, zip(tokens.tolist(), best.tolist(), strict=True))
        # The one synchronisation of a step.
        return self._conclude(scores, layout, self._pick(scores, layout).T.tolist())

    @torch.no_grad()
    def start(self, logits: Tensor, rows: list[Sequence]) -> Picking:
        """As `sample`, without waiting for the device to be done.

        Args:
            logits: As of `sample`; kept until the tokens are read.
            rows: At least one.

        Returns:
            What `finish` is to be called with.
        """
        scores, layout = self._process(logits, rows)
        pairs = self._pick(scores, layout)
        settled = not (layout.needs_host or scores.failures or scores.apart)
        return Picking(scores, layout, pairs, Readback(pairs), settled)

    @torch.no_grad()
    def finish(self, picking: Picking) -> Sampled:
        """Wait for the tokens and say what `sample` says."""
        return self._conclude(picking.scores, picking.layout, picking.wait())

    def _conclude(
        self, scores: BatchScores, layout: BatchLayout, picked: Iterable[Iterable[float]]
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

    def _process(self, logits: Tensor, rows: list[Sequence]) -> tuple[BatchScores, BatchLayout]:
        """Run the processors; where a form for many rows raises, each on its own row instead."""
        own = list(rows)
        try:
            return self._run(logits, own)
        except BaseException as error:
            request_failure(error)  # whose it is shows below: there each row fails alone
        self._layout = BatchLayout(BatchScores(logits, own, own=False), one_by_one=True)
        return self._run(logits, own)

    def _run(self, logits: Tensor, own: list[Sequence]) -> tuple[BatchScores, BatchLayout]:
        """Run the processors; they are laid out only where the rows are others than before."""
        layout = self._layout
        if layout is None or layout.rows != own:  # rows are told apart by identity
            layout = self._layout = BatchLayout(BatchScores(logits, own, own=False))
        scores = BatchScores(logits, own, own=bool(layout.steps))
        for step in layout.steps:
            step(scores)
        return scores, layout

    def _pick(self, scores: BatchScores, layout: BatchLayout) -> Tensor:
        """Pick from processed scores: token and score of each row, float64 [2, R].

        A score that is not finite is that of a row without a token to pick.
        """
        pairs = None
        for way, numbers, index in layout.ways:
            some = scores.values if index is None else scores.values.index_select(0, index)
            if way == "greedy":
                best, tokens = argmax(some)
            else:
                keys = scores.tensor([scores.rows[number].key for number in numbers])
                if way == "drawn":
                    tokens, best = self._draws(some, keys)
                else:
                    tokens, best = layout.shortlist.draw(some, keys, self._draws)
            found = torch.stack((tokens.double(), best.double()))  # which hold every token id
            if index is None:
                return found
            if pairs is None:
                pairs = found.new_empty(2, len(scores.rows))
            pairs.index_copy_(1, index, found)
        assert pairs is not None
        return pairs

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
        sampled: Sampled, logits: Tensor, rows: list[Sequence], explained: list[int]
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


@dataclass(slots=True)
class Picking:
    """Tokens of a step that the device is picking.

    Attributes:
        scores: As far as they were processed, and the raw logits.
        layout: What the rows have asked for.
        pairs: Tokens and their scores, float64 [2, R].
        back: The same on their way to the host.
        is_settled: Whether the tokens on the device are final; if not, `BatchSampler.finish` has
            things to do for some row before its token is known.
    """

    scores: BatchScores
    layout: BatchLayout
    pairs: Tensor
    back: Readback
    is_settled: bool

    def tokens(self) -> Tensor:
        """Ids on the device, int64 [R]; of rows that will fail any valid ones."""
        # Where there is nothing to pick from the number may be any.
        return self.pairs[0].clamp(0, self.scores.size - 1).long()

    def wait(self) -> list[list[float]]:
        """Wait for the token of each row, and its score."""
        pairs: list[list[float]] = self.back.wait().T.tolist()
        return pairs
