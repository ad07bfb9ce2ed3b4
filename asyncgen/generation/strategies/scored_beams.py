"""Diverse and constrained beam search: one loop around a documented beam scorer.

All beams share a forward; their groups are then served one after the other, so that a group sees
what those before it took.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.generation.strategies.beam import beam_rules
from asyncgen.generation.strategies.beam_rows import BeamRows
from asyncgen.generation.strategies.beam_scorers.constrained import ConstrainedBeamSearchScorer
from asyncgen.generation.strategies.beam_scorers.search import BeamSearchScorer
from asyncgen.generation.strategies.beam_stream import BeamStream, Result, common_length, stream_of
from asyncgen.generation.strategies.constraints import constraints_of
from asyncgen.generation.strategies.step import Outcome
from asyncgen.generation.strategies.token_by_token import require_finite

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.generation.strategies.beam_pool import BeamRules
    from asyncgen.generation.strategies.beam_scorers.search import RankedScorer
    from asyncgen.generation.strategies.step import Plan, Steps


_OUT = -1.0e9


def group_beam_search(plan: Plan) -> Steps:
    """Search with groups of beams that keep away from each other (arXiv 1610.02424).

    Raises:
        FloatingPointError: The scores of a prompt hold NaN, or ban every token of every beam.
    """
    groups = plan.config.num_beam_groups or 1
    return _search(plan, BeamSearchScorer(num_beam_groups=groups, **_options(plan)))


def constrained_beam_search(plan: Plan) -> Steps:
    """Search for outputs that contain what the configuration demands (arXiv 1804.06609).

    Raises:
        FloatingPointError: The scores of a prompt hold NaN, or ban every token of every beam.
    """
    constraints = constraints_of(plan.config)
    return _search(plan, ConstrainedBeamSearchScorer(constraints=constraints, **_options(plan)))


@dataclass(slots=True)
class _Beams:
    """The live beams of all prompts.

    Attributes:
        ids: int64 ``[B * N, T]``, beams of a prompt together.
        scores: Sums of log-probabilities, float32 ``[B * N]``.
        origins: Row of each generated token.
        groups: Rows of each group, int64 ``[G, B * N / G]``.
    """

    ids: Tensor
    scores: Tensor
    origins: list[tuple[int, ...]]
    groups: Tensor

    def go_on(self, parents: Tensor, tokens: Tensor, scores: Tensor) -> None:
        """Continue other rows by one token."""
        self.ids = torch.cat((self.ids[parents], tokens[:, None]), dim=1)
        self.scores = scores
        self.origins = [(*self.origins[parent], parent) for parent in parents.tolist()]


@torch.no_grad()
def _search(plan: Plan, scorer: RankedScorer) -> Steps:
    """The loop of both.

    Yields:
        A step without ids for each prompt chunk but the last, then one a forward.

    Returns:
        The best sequences of each prompt, and what is documented about them.
    """
    rules = beam_rules(plan)
    batch, prompt_length = plan.input_ids.shape
    beams = _begin(plan.input_ids, rules.num_beams, scorer.num_beam_groups)
    rows = BeamRows(plan, rules.num_beams)
    stream = stream_of(plan)
    raw = yield from rows.prefill()
    while True:
        logits = raw.float()
        stream.keep(beams.ids.shape[1] - prompt_length, logits)
        # Beams that are done go on with those of another prompt.
        agreed = 0 if scorer.has_idle else min(stream.sent)
        parents, tokens, scores = _step(plan, rules, scorer, beams, logits)
        hits, reason = _hits(plan, beams, scores)
        is_over = scorer.is_done or bool(hits.all())
        if is_over:
            outcome = _finish(plan, scorer, beams, stream, reason)
        else:
            _settle(plan, scorer, beams, stream)
        yield stream.step(logits, scores)
        rows.arrange(parents, agreed)
        if is_over:
            return outcome
        raw = rows.advance(tokens)


def _options(plan: Plan) -> dict[str, Any]:
    """What both scorers are made with."""
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


def _begin(prompt: Tensor, num_beams: int, num_groups: int) -> _Beams:
    """Copies of each prompt; only the first of each group counts."""
    batch, device = prompt.shape[0], prompt.device
    size = num_beams // num_groups
    scores = torch.full((batch, num_beams), _OUT, device=device)
    scores[:, ::size] = 0.0
    rows = torch.arange(batch * num_beams, device=device).view(batch, num_groups, size)
    return _Beams(
        prompt.repeat_interleave(num_beams, dim=0),
        scores.flatten(),
        [()] * (batch * num_beams),
        rows.transpose(0, 1).flatten(1),
    )


def _step(
    plan: Plan, rules: BeamRules, scorer: RankedScorer, beams: _Beams, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Serve every group; the beams go on.

    Returns:
        Parents and tokens of the new beams, int64 ``[B * N]``, and the processed
        log-probabilities of the old ones, ``[B * N, V]``.
    """
    processed = torch.log_softmax(logits, dim=-1)
    tokens = beams.ids.new_zeros(len(beams.ids))
    parents, scores = torch.zeros_like(tokens), torch.zeros_like(beams.scores)
    ended = [int(each) for each in sorted(plan.ends.eos_token_ids)]
    prompt_length = plan.input_ids.shape[1]
    for group, rows in enumerate(beams.groups):
        ids = beams.ids[rows]
        seen = {"current_tokens": tokens, "beam_group_idx": group} if len(beams.groups) > 1 else {}
        own = plan.processors(ids, processed[rows], **seen) if plan.processors else processed[rows]
        processed[rows] = own
        totals = own + beams.scores[rows, None]  # [B * size, V]
        flat = totals.view(plan.input_ids.shape[0], -1)
        require_finite(flat.amax(dim=1), ids.shape[1])
        count = rules.num_candidates // len(beams.groups)
        best = torch.topk(flat, min(count, flat.shape[1]))
        vocabulary = own.shape[1]
        answer = scorer.process(
            ids,
            best.values,
            best.indices % vocabulary,
            best.indices // vocabulary,
            pad_token_id=plan.pad_token_id,
            eos_token_id=ended,
            beam_indices=[beams.origins[row] for row in rows.tolist()],
            decoder_prompt_len=prompt_length,
            group_index=group,
            scores_for_all_vocab=totals,
        )
        tokens[rows] = answer["next_beam_tokens"]
        scores[rows] = answer["next_beam_scores"]
        parents[rows] = rows[answer["next_beam_indices"]]
    beams.go_on(parents, tokens, scores)
    return parents, tokens, processed


def _hits(plan: Plan, beams: _Beams, scores: Tensor) -> tuple[Tensor, str | None]:
    """Which live beams end, bool ``[B * N]``, and the reason common to all, if any."""
    return plan.ends.hits(beams.ids[:, -1], beams.ids.shape[1], lambda: (beams.ids, scores))


def _settle(plan: Plan, scorer: RankedScorer, beams: _Beams, stream: BeamStream) -> None:
    """Hand on what every possible result begins with; prompts that are done wait for the end."""
    batch, length = len(plan.input_ids), beams.ids.shape[1]
    by_group = beams.groups.view(len(beams.groups), batch, -1)
    for prompt in range(batch):
        if scorer.is_done_with(prompt):
            continue
        live = by_group[scorer.live_groups(prompt), prompt].flatten()
        ids, end = beams.ids[live], length
        best = scorer.best(prompt)
        if best is not None:
            end = min(length, len(best[1]))
            row = ids.new_zeros(1, length)
            row[0, :end] = best[1][:end]
            ids = torch.cat((ids, row))
        end = common_length(ids, stream.sent[prompt], end)
        stream.settle(prompt, ids[0], end, torch.tensor(beams.origins[int(live[0])]))


def _finish(
    plan: Plan, scorer: RankedScorer, beams: _Beams, stream: BeamStream, reason: str | None
) -> Outcome:
    """Rank everything, hand on the rest, make the documented tensors."""
    prompt_length = plan.input_ids.shape[1]
    found = scorer.finalize(
        beams.ids,
        beams.scores,
        beams.ids[:, -1],
        beams.ids[:, -1],
        max_length=plan.ends.max_length,
        pad_token_id=plan.pad_token_id,
        eos_token_id=plan.config.eos_token_id,
        beam_indices=beams.origins,
        decoder_prompt_len=prompt_length,
    )
    sequences, lengths = found["sequences"], found["sequence_lengths"]
    origins = found["beam_indices"][:, : sequences.shape[1] - prompt_length]
    picked: list[int] = (origins >= 0).sum(dim=1).tolist()
    results = []
    for row, length in enumerate(lengths):
        # An end that a beam chose has its row; one that was only written behind it has none.
        chose_end = int(sequences[row, length - 1]) in plan.ends.eos_token_ids
        is_whole = chose_end and picked[row] == length - prompt_length
        ended = "stop" if is_whole and reason != "cancelled" else reason or "stop"
        results.append(Result(sequences[row, :length], origins[row], ended))
    for prompt in range(len(plan.input_ids)):
        first = prompt * stream.returned
        stream.finish(prompt, results[first : first + stream.returned])
    return Outcome(
        sequences, {"sequences_scores": found["sequence_scores"], "beam_indices": origins}
    )
