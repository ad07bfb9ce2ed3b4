"""The scorer of constrained beam search.

Beside the best candidates it looks at those that bring a constraint further, and shares the beams
out over how far they are: banks of equal progress take turns (dynamic beam allocation; Post and
Vilar 2018, arXiv 1804.06609, section 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.strategies.beam_scorers.search import BeamSearchScorer
from asyncgen.generation.strategies.constraints import (
    Constraint,
    ConstraintListState,
    DisjunctiveConstraint,
    PhrasalConstraint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.generation.strategies.beam_scorers.search import Continuation, GroupStep


_PLAIN = (PhrasalConstraint, DisjunctiveConstraint)
"""Constraints that begin with what they ask for, and with nothing else."""

_BANK = 100
"""What one token of progress weighs against a sum of log-probabilities, in the order of banks."""


class ConstrainedBeamSearchScorer(BeamSearchScorer):
    """Ranks candidates so that every constraint is met; a sequence ends only when all are."""

    def __init__(
        self,
        batch_size: int,
        num_beams: int,
        constraints: list[Constraint],
        device: torch.device | str,
        length_penalty: float | None = 1.0,
        do_early_stopping: bool | str | None = False,
        num_beam_hyps_to_keep: int | None = 1,
        num_beam_groups: int | None = 1,
        max_length: int | None = None,
    ) -> None:
        """Begin with empty n-best lists.

        Args:
            batch_size: Prompts.
            num_beams: Beams of each, at least 2.
            constraints: What every output must contain.
            device: Where answers lie.
            length_penalty: Exponent of the length; above 0 favours long sequences.
            do_early_stopping: See `BeamHypotheses`.
            num_beam_hyps_to_keep: Sequences of each prompt that `finalize` returns.
            num_beam_groups: Groups; must divide ``num_beams``.
            max_length: Longest sequence, prompt included.

        Raises:
            InvalidRequestError: A number is out of range.
        """
        super().__init__(
            batch_size,
            num_beams,
            device,
            length_penalty,
            do_early_stopping,
            num_beam_hyps_to_keep,
            num_beam_groups,
            max_length,
        )
        self.constraints = constraints
        self._longest = max(each.seqlen for each in constraints)
        self._are_plain = all(type(each) in _PLAIN for each in constraints)
        self._begun: dict[int, tuple[Constraint, dict[int, int]]] = {}
        self._known: dict[tuple[int, ...], ConstraintListState] = {}

    def make_constraint_states(self, n: int) -> list[ConstraintListState]:
        """Make states at the beginning of a sequence."""
        return [ConstraintListState(self.constraints) for _ in range(n)]

    def check_completes_constraints(self, sequence: Sequence[int]) -> bool:
        """Tell whether a sequence meets all constraints."""
        return self._state(tuple(sequence)).completed

    def process(  # type: ignore[override]  # the documented order differs
        self,
        input_ids: Tensor,
        next_scores: Tensor,
        next_tokens: Tensor,
        next_indices: Tensor,
        scores_for_all_vocab: Tensor | None = None,
        pad_token_id: Any = None,
        eos_token_id: Any = None,
        beam_indices: Sequence[Sequence[int]] | None = None,
        decoder_prompt_len: int | None = 0,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Take the candidates of one step (see `BeamSearchScorer.process`).

        Args:
            input_ids: int64 ``[B * N, T]``.
            next_scores: float32 ``[B, K]``, best first.
            next_tokens: int64 ``[B, K]``.
            next_indices: int64 ``[B, K]``.
            scores_for_all_vocab: Sums of log-probabilities of every continuation, float32
                ``[B * N, V]``; those that bring a constraint further are picked out of it.
            pad_token_id: What prompts that are done go on with.
            eos_token_id: Id or ids that end a sequence.
            beam_indices: Rows of the generated tokens of each beam, if they are wanted.
            decoder_prompt_len: Length of the prompt.
            kwargs: Nothing.
        """
        if scores_for_all_vocab is None:
            raise TypeError("`scores_for_all_vocab` is needed to bring constraints further")
        answer = super().process(
            input_ids,
            next_scores,
            next_tokens,
            next_indices,
            pad_token_id,
            eos_token_id,
            beam_indices,
            decoder_prompt_len=decoder_prompt_len,
            scores_for_all_vocab=scores_for_all_vocab,
        )
        # The next step continues sequences of this one.
        length = input_ids.shape[-1]
        self._known = {ids: state for ids, state in self._known.items() if len(ids) >= length}
        return answer

    def _may_end(self, ids: Tensor) -> bool:
        return self.check_completes_constraints(ids.tolist())

    def _final_rows(self, rows: range, input_ids: Tensor) -> list[int]:
        """Beams that meet all constraints; others only where these are too few."""
        meeting = [row for row in rows if self.check_completes_constraints(input_ids[row].tolist())]
        others = [row for row in rows if row not in meeting]
        return meeting + (others if len(meeting) < self.num_beam_hyps_to_keep else [])

    def _rearrange(
        self, step: GroupStep, prompt: int, beams: list[Continuation]
    ) -> list[Continuation]:
        """Add candidates that bring a constraint further; share the beams out over the banks."""
        assert step.totals is not None
        totals, size = step.totals, len(beams)
        first = prompt * size
        before = [tuple(ids) for ids in step.input_ids[first : first + size].tolist()]
        states = [self._state(ids) for ids in before]
        same = {ids: place for place, ids in enumerate(before)}  # equal beams are one
        places = [same[ids] for ids in before]
        seen = {(places[row - first], token) for _, token, row in beams}
        parents: list[int] = []
        tokens: list[int] = []
        for row, (place, state) in enumerate(zip(places, states, strict=True), start=first):
            for token in () if state.completed else state.advance() or ():
                if (place, token) not in seen:
                    seen.add((place, token))
                    parents.append(row)
                    tokens.append(token)
        if not tokens:
            return beams
        scores: list[float] = totals[parents, tokens].tolist()
        beams += zip(scores, tokens, parents, strict=True)
        following = [self._following(state) for state in states]
        banks = [following[row - first](token) for _, token, row in beams]
        order = _order_by_banks(banks, totals.new_tensor([score for score, _, _ in beams]))
        return [beams[place] for place in order[:size]]

    def _following(self, state: ConstraintListState) -> Callable[[int], int]:
        """Make the function that tells the bank of a sequence with one more token."""
        if state.completed or state.inprogress_constraint or not self._are_plain:

            def bank(token: int) -> int:
                twin = state.copy()
                twin.add(token)
                return twin.get_bank()

            return bank
        now, begun = state.get_bank(), dict[int, int]()
        for each in reversed(state.pending_constraints):  # a token begins the first that it fits
            begun |= self._beginnings(each)
        return lambda token: now + begun.get(token, 0)

    def _beginnings(self, constraint: Constraint) -> dict[int, int]:
        """Tell what each first token of a constraint adds to the bank; computed once."""
        key = id(constraint)  # those of all sequences are the same objects
        if key not in self._begun:
            wanted, added = constraint.advance(), dict[int, int]()
            for token in wanted if isinstance(wanted, list) else [wanted]:
                assert token is not None, "a constraint that has not begun asks for something"
                twin = constraint.copy(stateful=False)
                twin.update(token)
                added[token] = self._longest - twin.remaining()
            self._begun[key] = constraint, added
        return self._begun[key][1]

    def _state(self, ids: tuple[int, ...]) -> ConstraintListState:
        """Return a sequence's progress; a token behind a known sequence is one step more."""
        state = self._known.get(ids)
        if state is None:
            shorter = self._known.get(ids[:-1])
            if shorter is not None:
                state = shorter.copy(stateful=True)
                state.add(ids[-1])
            else:
                state = ConstraintListState(self.constraints)
                state.reset(ids)
            self._known[ids] = state
        return state


def _order_by_banks(banks: list[int], scores: Tensor) -> list[int]:
    """Order of candidates: the best of each bank, furthest bank first, then the second best …"""
    weights = torch.tensor(banks, dtype=torch.int64, device=scores.device) * _BANK + scores
    order: list[int] = torch.sort(weights, descending=True).indices.tolist()
    ranks, bank, rank = [], None, 0
    for place in order:
        rank = rank + 1 if banks[place] == bank else 0
        bank = banks[place]
        ranks.append(rank)
    return [place for _, place in sorted(zip(ranks, order, strict=True), key=lambda pair: pair[0])]
