"""Diverse and constrained beam search: a documented beam scorer selects the beams.

All beams share a forward; their groups are then served one after the other, so that a group sees
which tokens those before it took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.strategies.beam import BeamSelection, beam_rules, most_probable, search
from asyncgen.generation.strategies.beam_pool import LiveBeams
from asyncgen.generation.strategies.beam_scorers.constrained import ConstrainedBeamSearchScorer
from asyncgen.generation.strategies.beam_scorers.search import BeamSearchScorer
from asyncgen.generation.strategies.beam_stream import BeamResult, common_length
from asyncgen.generation.strategies.constraints import constraints_of
from asyncgen.generation.strategies.step import Outcome
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.step import Plan, Steps


def group_beam_search(plan: Plan) -> Steps:
    """Search with groups of beams that keep away from each other (arXiv 1610.02424).

    Raises:
        FloatingPointError: The scores of a prompt hold NaN, or ban every token of every beam.
    """
    groups = plan.config.num_beam_groups or 1
    scorer = BeamSearchScorer(num_beam_groups=groups, **_options(plan))
    return search(ScorerSelection(plan, scorer))


def constrained_beam_search(plan: Plan) -> Steps:
    """Search for outputs that contain what the configuration demands (arXiv 1804.06609).

    Raises:
        FloatingPointError: The scores of a prompt hold NaN, or ban every token of every beam.
    """
    constraints = constraints_of(plan.config)
    scorer = ConstrainedBeamSearchScorer(constraints=constraints, **_options(plan))
    return search(ScorerSelection(plan, scorer))


def _options(plan: Plan) -> dict[str, Any]:
    """Read the options of a scorer from a plan."""
    rules = beam_rules(plan)
    return {
        "batch_size": plan.input_ids.shape[0],
        "num_beams": rules.num_beams,
        "device": plan.input_ids.device,
        "length_penalty": rules.length_penalty,
        "do_early_stopping": rules.early_stopping,
        "num_beam_hyps_to_keep": plan.config.num_return_sequences or 1,
        "max_length": rules.max_length,
    }


class ScorerSelection(BeamSelection):
    """Let a documented scorer select the beams and keep the complete hypotheses."""

    def __init__(self, plan: Plan, scorer: BeamSearchScorer) -> None:
        """Begin with the prompts of a plan.

        Args:
            plan: One row a prompt.
            scorer: Scorer of its beams, without hypotheses.
        """
        rules, batch = beam_rules(plan), plan.input_ids.shape[0]
        super().__init__(plan, LiveBeams(plan.input_ids, rules, scorer.num_beam_groups))
        self._scorer = scorer
        rows = torch.arange(
            batch * rules.num_beams, dtype=torch.int64, device=plan.input_ids.device
        )
        rows = rows.view(batch, scorer.num_beam_groups, -1)
        self._groups = rows.transpose(0, 1).flatten(1)  # rows of each group, [G, B * N / G]

    @property
    def agreed(self) -> int:
        """See `BeamSelection`; beams of a prompt that is done continue those of another."""
        return 0 if self._scorer.has_done_prompts else min(self.stream.sent)

    def advance(self, logits: Tensor) -> bool:
        """See `BeamSelection`."""
        plan, beams = self.plan, self.beams
        agreed = self.agreed
        self.scores = torch.log_softmax(logits, dim=-1)
        rows, origins = beams.rows, beams.origins.tolist()
        sums = beams.live.scores.flatten()
        parents, tokens = rows.new_zeros(len(rows)), rows.new_zeros(len(rows))
        scores = torch.zeros_like(sums)
        for group, places in enumerate(self._groups):
            answer = self._process(group, rows[places], sums[places], tokens, origins)
            tokens[places] = answer["next_beam_tokens"]
            scores[places] = answer["next_beam_scores"]
            parents[places] = places[answer["next_beam_indices"]]
        beams.extend(parents, tokens, scores.view_as(beams.live.scores), agreed)
        # A copy, since code of a user may write to it.
        hits, reason = plan.stop_checks.hits(
            tokens, beams.length, lambda: beams.rows.clone(), self.scores
        )
        is_over = self._scorer.is_done or bool(hits.all())
        if is_over:
            self._finish(reason)
        else:
            self._settle()
        return is_over

    def outcome(self) -> Outcome:
        """See `BeamSelection`."""
        return self._outcome

    def _process(
        self, group: int, ids: Tensor, sums: Tensor, taken: Tensor, origins: list[list[int]]
    ) -> dict[str, Tensor]:
        """Let the scorer choose the next beams of a group.

        Args:
            group: The group.
            ids: Its beams, int64 ``[B * N / G, T]``.
            sums: Their sums of log-probabilities, float32 ``[B * N / G]``.
            taken: Tokens that the groups before took, int64 ``[B * N]``.
            origins: Row of each generated token of every beam.
        """
        plan, places, rules = self.plan, self._groups[group], self.beams.rules
        own = self.scores[places]
        if plan.processors:
            grouped = len(self._groups) > 1
            seen = {"current_tokens": taken, "beam_group_idx": group} if grouped else {}
            own = plan.processors(ids.clone(), own, **seen).to(own.dtype)
            self.scores[places] = own
        totals = own + sums[:, None]
        count = rules.num_candidates // len(self._groups)
        flat = totals.view(len(plan.input_ids), -1)
        found = self.candidates(flat, own.shape[1], count, most_probable)
        return run_user_code(  # constraints may be a user's
            self._scorer.process,
            ids,
            found.scores,
            found.tokens,
            found.parents,
            pad_token_id=plan.pad_token_id,
            eos_token_id=sorted(plan.stop_checks.eos_token_ids),
            beam_indices=[origins[row] for row in places.tolist()],
            decoder_prompt_len=self.beams.prompt_length,
            group_index=group,
            scores_for_all_vocab=totals,
        )

    def _settle(self) -> None:
        """Hand on what every result begins with; prompts that are done wait for the end."""
        beams, scorer, length = self.beams, self._scorer, self.beams.length
        all_rows = beams.rows
        by_group = self._groups.view(len(self._groups), len(self.plan.input_ids), -1)
        for prompt in range(by_group.shape[1]):
            if scorer.is_prompt_done(prompt):
                continue
            live = by_group[scorer.live_groups(prompt), prompt].flatten()
            ids, end = all_rows[live], length
            best = scorer.best(prompt)
            if best is not None:
                end = min(length, len(best[1]))
                row = ids.new_zeros(1, length)
                row[0, :end] = best[1][:end]
                ids = torch.cat((ids, row))
            end = common_length(ids, self.stream.sent[prompt], end)
            self.stream.settle(prompt, ids[0], end, beams.origins[live[0]])

    def _finish(self, reason: str | None) -> None:
        """Rank everything, hand on the rest, make the documented tensors."""
        plan, beams, stream = self.plan, self.beams, self.stream
        found = run_user_code(
            self._scorer.finalize,
            beams.rows,
            beams.live.scores.flatten(),
            beams.tokens,
            beams.tokens,
            max_length=plan.stop_checks.max_length,
            pad_token_id=plan.pad_token_id,
            eos_token_id=plan.config.eos_token_id,
            beam_indices=beams.origins.tolist(),
            decoder_prompt_len=beams.prompt_length,
        )
        sequences, lengths = found["sequences"], found["sequence_lengths"]
        origins = found["beam_indices"][:, : sequences.shape[1] - beams.prompt_length]
        picked: list[int] = (origins >= 0).sum(dim=1).tolist()
        results = []
        for row, length in enumerate(lengths):
            # An end that the scorer wrote behind a beam has no row.
            chose_end = int(sequences[row, length - 1]) in plan.stop_checks.eos_token_ids
            is_whole = chose_end and picked[row] == length - beams.prompt_length
            ended = "stop" if is_whole and reason != "cancelled" else reason or "stop"
            results.append(BeamResult(sequences[row, :length], origins[row], ended))
        for prompt in range(len(plan.input_ids)):
            first = prompt * stream.returned
            stream.finish(prompt, results[first : first + stream.returned])
        self._outcome = Outcome(
            sequences, {"sequences_scores": found["sequence_scores"], "beam_indices": origins}
        )
