"""Score the beams of standard and diverse beam search; the constrained scorer extends it.

Diverse beam search (Vijayakumar et al. 2016, arXiv 1610.02424) runs several groups of beams for
each prompt, one after the other in every step; each group has its own n-best list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.rules import Range, require
from asyncgen.generation.strategies.beam_scorers.base import (
    BeamHypotheses,
    BeamScorer,
    first_id,
    id_list,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


Continuation: TypeAlias = tuple[float, int, int]
"""A beam to go on with: its sum of log-probabilities, newest token, and the row it continues."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """Inputs of a group's step beside its candidates.

    Attributes:
        input_ids: Beams of the group, int64 ``[B * group_size, T]``.
        ends: Ids that end a sequence.
        filler: What prompts that are done go on with.
        beam_indices: Rows of the generated tokens of each beam, if they are wanted.
        group: The group.
        prompt_length: Length of the prompt.
        totals: Sums of log-probabilities of every continuation, float32 ``[B * group_size, V]``;
            for constraints alone.
    """

    input_ids: Tensor
    ends: frozenset[int]
    filler: int | None
    beam_indices: Sequence[Sequence[int]] | None
    group: int
    prompt_length: int
    totals: Tensor | None


class BeamSearchScorer(BeamScorer):
    """Ranks candidates by their sums of log-probabilities, in n-best lists.

    Each group of each prompt has its own list.

    Attributes:
        group_size: Beams of a group, ``num_beams // num_beam_groups``.
    """

    def __init__(
        self,
        batch_size: int,
        num_beams: int,
        device: torch.device | str,
        length_penalty: float | None = 1.0,
        do_early_stopping: bool | str | None = False,
        num_beam_hyps_to_keep: int | None = 1,
        num_beam_groups: int | None = 1,
        max_length: int | None = None,
    ) -> None:
        """Begin with empty n-best lists.

        Args:
            batch_size: Prompts, B.
            num_beams: Beams of each, at least 2.
            device: Where answers lie.
            length_penalty: Exponent of the length; above 0 favours long sequences.
            do_early_stopping: See `BeamHypotheses`.
            num_beam_hyps_to_keep: Sequences of each prompt that `finalize` returns, R.
            num_beam_groups: Groups; must divide ``num_beams``.
            max_length: Longest sequence, prompt included.

        Raises:
            InvalidRequestError: A number is out of range.
        """
        groups = 1 if num_beam_groups is None else num_beam_groups
        if isinstance(num_beams, bool) or not isinstance(num_beams, int) or num_beams <= 1:
            raise InvalidRequestError(
                "num_beams", num_beams, "an integer of at least 2; for one beam search greedily"
            )
        if not isinstance(groups, int) or not 1 <= groups <= num_beams or num_beams % groups:
            raise InvalidRequestError(
                "num_beam_groups", groups, f"an integer that divides `num_beams` ({num_beams})"
            )
        require("batch_size", batch_size, Range(0, whole=True))
        require("num_beam_hyps_to_keep", num_beam_hyps_to_keep or 1, Range(1, whole=True))
        self.num_beams = num_beams
        self.device = device
        self.length_penalty = 1.0 if length_penalty is None else length_penalty
        self.do_early_stopping = do_early_stopping or False
        self.num_beam_hyps_to_keep = num_beam_hyps_to_keep or 1
        self.num_beam_groups = groups
        self.group_size = num_beams // groups
        self._hypotheses = [
            BeamHypotheses(self.group_size, self.length_penalty, self.do_early_stopping, max_length)
            for _ in range(batch_size * groups)
        ]
        self._done = [False] * (batch_size * groups)

    @property
    def is_done(self) -> bool:
        """True if no prompt can get a better hypothesis."""
        return all(self._done)

    @property
    def has_done_prompts(self) -> bool:
        """True if some prompts are done, and their beams only fill the batch."""
        return any(self._done)

    def is_prompt_done(self, prompt: int) -> bool:
        """Return whether this prompt can get no better hypothesis."""
        return all(self._done[place] for place in self._lists(prompt))

    def best(self, prompt: int) -> tuple[float, Tensor, Sequence[int] | None] | None:
        """The best complete hypothesis of a prompt: score, ids, beam indices."""
        found = [self._hypotheses[place].best for place in self._lists(prompt)]
        kept = [each for each in found if each is not None]
        return max(reversed(kept), key=lambda beam: beam[0]) if kept else None

    def live_groups(self, prompt: int) -> list[int]:
        """Groups of a prompt that are not done."""
        places = self._lists(prompt)
        return [place - places.start for place in places if not self._done[place]]

    def finalize(  # type: ignore[override]  # the documented names differ
        self,
        input_ids: Tensor,
        final_beam_scores: Tensor,
        final_beam_tokens: Tensor,
        final_beam_indices: Tensor,
        max_length: int | None,
        pad_token_id: Any = None,
        eos_token_id: Any = None,
        beam_indices: Sequence[Sequence[int]] | None = None,
        decoder_prompt_len: int | None = 0,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Rank what lives beside what is complete (see `BeamScorer`).

        Args:
            input_ids: All beams, int64 ``[B * num_beams, T]``, groups of a prompt together.
            final_beam_scores: Their scores, float32 ``[B * num_beams]``.
            final_beam_tokens: Not used.
            final_beam_indices: Not used.
            max_length: Longest sequence; shorter ones get an end-of-sequence id. ``None``: no
                limit.
            pad_token_id: Fills behind it.
            eos_token_id: Id or ids that end a sequence; the first one is written.
            beam_indices: Rows of the generated tokens of each beam.
            decoder_prompt_len: Length of the prompt.
            kwargs: Nothing.

        Returns:
            See `BeamScorer`; and ``sequence_lengths``, without the filling behind the end.
        """
        scores: list[float] = final_beam_scores.tolist()
        length = input_ids.shape[-1] - (decoder_prompt_len or 0)
        going_on = [place for place, done in enumerate(self._done) if not done]
        for place in going_on:
            rows = range(place * self.group_size, (place + 1) * self.group_size)
            for row in self._final_rows(rows, input_ids):
                origins = None if beam_indices is None else beam_indices[row]
                self._hypotheses[place].add(input_ids[row], scores[row], origins, length)
        best = [
            beam
            for prompt in range(len(self._done) // self.num_beam_groups)
            for beam in self._ranked(prompt)[: self.num_beam_hyps_to_keep]
        ]
        longest = max(len(ids) for _, ids, _ in best) + 1
        if max_length is not None:
            longest = min(longest, max_length)
        filler, end = first_id(pad_token_id), first_id(eos_token_id)
        sequences = input_ids.new_full((len(best), longest), 0 if filler is None else filler)
        lengths = [len(ids) for _, ids, _ in best]
        for row, (_, ids, _) in enumerate(best):
            sequences[row, : len(ids)] = ids
            if len(ids) < longest and end is not None:
                sequences[row, len(ids)] = end
                lengths[row] += 1
        return {
            "sequences": sequences,
            "sequence_scores": final_beam_scores.new_tensor([score for score, _, _ in best]),
            "beam_indices": self._origins([origins for _, _, origins in best], sequences),
            "sequence_lengths": lengths,
        }

    def process(
        self,
        input_ids: Tensor,
        next_scores: Tensor,
        next_tokens: Tensor,
        next_indices: Tensor,
        pad_token_id: Any = None,
        eos_token_id: Any = None,
        beam_indices: Sequence[Sequence[int]] | None = None,
        group_index: int | None = 0,
        decoder_prompt_len: int | None = 0,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Take the candidates of one step of one group (see `BeamScorer`).

        Args:
            input_ids: Beams of the group, int64 ``[B * group_size, T]``.
            next_scores: float32 ``[B, K]``, best first.
            next_tokens: int64 ``[B, K]``.
            next_indices: int64 ``[B, K]``, 0 to ``group_size - 1``.
            pad_token_id: Id that fills the rows of prompts that are done.
            eos_token_id: Id or ids that end a sequence.
            beam_indices: Rows of the generated tokens of each beam, if they are wanted; counted
                over the beams of all groups.
            group_index: The group.
            decoder_prompt_len: Length of the prompt, which the length penalty does not count.
            kwargs: ``scores_for_all_vocab``, for constraints.

        Returns:
            See `BeamScorer`.

        Raises:
            InvalidRequestError: The number of rows does not fit.
            ValueError: Fewer candidates than beams go on.
        """
        step = GroupStep(
            input_ids,
            frozenset(id_list(eos_token_id)),
            first_id(pad_token_id),
            beam_indices,
            group_index or 0,
            decoder_prompt_len or 0,
            kwargs.get("scores_for_all_vocab"),
        )
        candidates = next_scores, next_tokens, next_indices
        rows = len(self._hypotheses) // self.num_beam_groups * self.group_size
        if len(input_ids) != rows:
            raise InvalidRequestError("input_ids", tuple(input_ids.shape), f"needs {rows} rows")
        chosen: list[Continuation] = []
        tables = (table.tolist() for table in candidates)
        for prompt, ranked in enumerate(zip(*tables, strict=True)):
            place = prompt * self.num_beam_groups + step.group
            if self._done[place]:
                chosen += self._filler_beams(step)
                continue
            chosen += self._rearrange(step, prompt, self._select_beams(step, prompt, *ranked))
            length = input_ids.shape[-1] + 1
            self._done[place] |= self._hypotheses[place].is_done(
                max(ranked[0]), length, step.prompt_length
            )
        names = ("next_beam_scores", "next_beam_tokens", "next_beam_indices")
        columns = zip(names, candidates, zip(*chosen, strict=True), strict=True)
        return {name: table.new_tensor(column) for name, table, column in columns}

    def _select_beams(
        self,
        step: GroupStep,
        prompt: int,
        scores: list[float],
        tokens: list[int],
        indices: list[int],
    ) -> list[Continuation]:
        """Candidates of a prompt, best first: they end, or go on until there are enough."""
        size, beams = self.group_size, list[Continuation]()
        for rank, (score, token, index) in enumerate(zip(scores, tokens, indices, strict=True)):
            row = prompt * size + index
            if token not in step.ends:
                beams.append((score, token, row))
            elif rank < size and self._may_end(step.input_ids[row]):
                self._complete(step, prompt, index, score)
            if len(beams) == size:
                return beams
        raise ValueError(
            f"only {len(beams)} of {size} beams go on, from the candidates {tokens}; give "
            f"more candidates than there can be ends ({sorted(step.ends)})"
        )

    def _complete(self, step: GroupStep, prompt: int, index: int, score: float) -> None:
        place, row = prompt * self.num_beam_groups + step.group, prompt * self.group_size + index
        origins = None
        if step.beam_indices is not None:
            origins = (*step.beam_indices[row], place * self.group_size + index)
        length = step.input_ids.shape[-1] + 1 - step.prompt_length
        self._hypotheses[place].add(step.input_ids[row].clone(), score, origins, length)

    def _filler_beams(self, step: GroupStep) -> list[Continuation]:
        """Return the filler beams of a prompt that is done."""
        if step.filler is None or not step.ends:
            raise ValueError(
                "a prompt is done before the others: `pad_token_id` and `eos_token_id` have to "
                "be defined"
            )
        return [(0.0, step.filler, 0)] * self.group_size

    def _rearrange(
        self, step: GroupStep, prompt: int, beams: list[Continuation]
    ) -> list[Continuation]:
        """Change the beams that a prompt goes on with; constraints do."""
        return beams

    def _may_end(self, ids: Tensor) -> bool:
        """Return whether a sequence may end here."""
        return True

    def _final_rows(self, rows: range, input_ids: Tensor) -> list[int]:
        """Return the live beams that count as results."""
        return list(rows)

    def _lists(self, prompt: int) -> range:
        return range(prompt * self.num_beam_groups, (prompt + 1) * self.num_beam_groups)

    def _ranked(self, prompt: int) -> list[tuple[float, Tensor, Sequence[int] | None]]:
        """All hypotheses of a prompt, best first; the newest first among equals."""
        found = [beam for place in self._lists(prompt) for beam in self._hypotheses[place].beams]
        return sorted(found, key=lambda beam: beam[0])[::-1]

    def _origins(self, found: list[Sequence[int] | None], like: Tensor) -> Tensor | None:
        if any(origins is None for origins in found):
            return None
        table = like.new_full(like.shape, -1)
        for row, origins in enumerate(found):
            table[row, : len(origins or ())] = like.new_tensor(origins)
        return table
