"""Beam search: one loop for all four kinds, and the two that keep a pool of hypotheses.

A `BeamSelection` decides which beams go on, end and are returned; the loop runs the model,
arranges its cache and streams what is settled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

import torch

from asyncgen.generation.strategies.beam_pool import BeamPool, BeamRules, Candidates, LiveBeams
from asyncgen.generation.strategies.beam_rows import BeamRows
from asyncgen.generation.strategies.beam_scorers.base import id_list
from asyncgen.generation.strategies.beam_stream import BeamResult, common_length, make_beam_stream
from asyncgen.generation.strategies.step import Outcome
from asyncgen.generation.strategies.token_by_token import require_finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps

    Choose: TypeAlias = Callable[[Tensor, int, int], Tensor]
    """(scores ``[B, M]``, count, position) -> indices ``[B, count]`` of candidates."""


def beam_search(plan: Plan) -> Steps:
    """Keep the `num_beams` most probable beginnings; return the best ends.

    Raises:
        FloatingPointError: The scores of a prompt hold NaN, or ban every token of every beam.
    """
    return search(PoolSelection(plan, most_probable))


def beam_sample(plan: Plan) -> Steps:
    """Beam search whose candidates are drawn, without replacement, by ``plan.draw.several``.

    Raises:
        FloatingPointError: As for :func:`beam_search`.
    """
    return search(PoolSelection(plan, plan.draw.several))


def beam_rules(plan: Plan) -> BeamRules:
    """Read the rules of a search out of the plan's configuration."""
    config = plan.config
    ends = id_list(config.eos_token_id)
    # As the reference fills: an id of 0 is no padding id to it.
    filler = config.pad_token_id or next(iter(ends), plan.pad_token_id)
    return BeamRules(
        num_beams=config.num_beams or 1,
        early_stopping=config.early_stopping or False,
        length_penalty=1.0 if config.length_penalty is None else float(config.length_penalty),
        max_length=plan.stop_checks.max_length,
        filler=filler,
        num_ends=len(ends),
    )


def most_probable(total: Tensor, count: int, position: int) -> Tensor:
    """Choose the candidates with the highest scores, best first."""
    return torch.topk(total, count).indices


class BeamSelection(ABC):
    """Rule by which beams go on, end and are returned.

    Attributes:
        plan: The plan of the search.
        beams: Its live beams.
        stream: Stream of the settled ids.
        scores: Processed log-probabilities of the last step, float32 ``[B * N, V]``.
    """

    scores: Tensor

    def __init__(self, plan: Plan, beams: LiveBeams) -> None:
        """Begin before the first step."""
        self.plan = plan
        self.beams = beams
        self.stream = make_beam_stream(plan)

    @property
    @abstractmethod
    def agreed(self) -> int:
        """Position before which each beam and the one that it continues next are alike."""

    @abstractmethod
    def advance(self, logits: Tensor) -> bool:
        """Take one step, and tell the stream what it settled.

        Args:
            logits: Raw logits, float32 ``[B * N, V]``.

        Returns:
            True if the search is over.
        """

    @abstractmethod
    def outcome(self) -> Outcome:
        """Make the documented tensors after the last step."""

    def candidates(self, total: Tensor, size: int, count: int, choose: Choose) -> Candidates:
        """Choose the candidates of a step.

        Args:
            total: Sums of log-probabilities of every continuation, float32 ``[B, M * V]``.
            size: Tokens of the vocabulary, V.
            count: Candidates of each prompt, at most.
            choose: How they are chosen.

        Raises:
            FloatingPointError: The scores of a prompt hold NaN, or ban every token.
        """
        require_finite(total.amax(dim=1), self.beams.length)
        which = choose(total, min(count, total.shape[1]), self.beams.length)
        return Candidates(which // size, which % size, total.gather(1, which))


@torch.no_grad()
def search(selection: BeamSelection) -> Steps:
    """Run one forward of all beams a step until a selection is over.

    Yields:
        A step without ids for each prompt chunk but the last, then one a forward.

    Returns:
        The best sequences of each prompt, and what is documented about them.
    """
    beams, stream = selection.beams, selection.stream
    rows = BeamRows(selection.plan, beams.rules.num_beams)
    raw = yield from rows.prefill()
    while True:
        logits = raw.float()
        stream.keep(beams.length - beams.prompt_length, logits)
        agreed = selection.agreed
        is_over = selection.advance(logits)
        yield stream.step(logits, selection.scores)
        rows.arrange(beams.parents, agreed)
        if is_over:
            return selection.outcome()
        raw = rows.advance(beams.tokens)


class PoolSelection(BeamSelection):
    """Keep the best live beams and, beside them, the best complete hypotheses."""

    beams: BeamPool

    def __init__(self, plan: Plan, choose: Choose) -> None:
        """Begin with the prompts of a plan.

        Args:
            plan: One row a prompt.
            choose: Chooses the candidates of a step.
        """
        super().__init__(plan, BeamPool(plan.input_ids, beam_rules(plan)))
        self._choose = choose

    @property
    def agreed(self) -> int:
        """See `BeamSelection`."""
        return min(self.beams.agreed)

    def advance(self, logits: Tensor) -> bool:
        """See `BeamSelection`."""
        pool, scores = self.beams, torch.log_softmax(logits, dim=-1)
        if self.plan.processors:
            # A copy, since code of a user may write to it.
            scores = self.plan.processors(pool.rows.clone(), scores)
        count = pool.rules.num_candidates
        found = self.candidates(pool.total(scores), scores.shape[-1], count, self._choose)
        hits, reason = self._ended(found, scores)
        self.scores = scores
        pool.advance(found, hits)
        is_over = bool(hits.all()) or bool(pool.is_closed.all())
        self._stream_settled(is_over, reason)
        return is_over

    def outcome(self) -> Outcome:
        """See `BeamSelection`."""
        best, returned = self.beams.complete, self.stream.returned
        length = int(best.lengths[:, :returned].max())
        origins = best.origins[:, :returned, : length - self.beams.prompt_length]
        return Outcome(
            best.ids[:, :returned, :length].flatten(0, 1).clone(),
            {
                "sequences_scores": best.scores[:, :returned].flatten(),
                "beam_indices": origins.flatten(0, 1).clone(),
            },
        )

    def _ended(self, found: Candidates, scores: Tensor) -> tuple[Tensor, str | None]:
        """Find the candidates that end, bool ``[B, K]``, and the reason common to all, if any."""
        pool = self.beams

        hits, reason = self.plan.stop_checks.hits(
            found.tokens.flatten(),
            pool.length + 1,
            lambda: pool.continued(found).ids[:, :, : pool.length + 1].flatten(0, 1),
            scores,
            (found.parents + pool.first_row).flatten(),
        )
        return hits.view_as(found.tokens), reason

    def _stream_settled(self, is_over: bool, reason: str | None) -> None:
        """Tell the stream what this step settled of each prompt."""
        pool, stream = self.beams, self.stream
        closed: list[bool] = pool.is_closed.tolist()
        some_complete: list[bool] = pool.is_complete[:, 0].tolist()
        for prompt, done in enumerate(closed):
            if stream.is_done[prompt]:
                continue
            if done or is_over:
                stream.finish(prompt, self._results(prompt, reason))
                continue
            ids, end = pool.live.ids[prompt, 0], pool.agreed[prompt]
            if some_complete[prompt]:
                both = torch.stack((ids, pool.complete.ids[prompt, 0]))
                end = min(end, int(pool.complete.lengths[prompt, 0]))
                end = common_length(both, stream.sent[prompt], end)
            stream.settle(prompt, ids, end, pool.live.origins[prompt, 0])

    def _results(self, prompt: int, reason: str | None) -> list[BeamResult]:
        """Return the sequences of a prompt, each with the reason of its end."""
        pool, found = self.beams, []
        lengths: list[int] = pool.complete.lengths[prompt, : self.stream.returned].tolist()
        for place, length in enumerate(lengths):
            ids = pool.complete.ids[prompt, place, :length]
            ended: str = "stop"
            if int(ids[-1]) not in self.plan.stop_checks.eos_token_ids and length == pool.length:
                ended = reason or "stop"
            if reason == "cancelled":
                ended = reason
            found.append(BeamResult(ids, pool.complete.origins[prompt, place], ended))
        return found
