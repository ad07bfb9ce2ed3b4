"""Drives a scorer with random candidates, as a search would."""

from __future__ import annotations

from typing import Any

import torch

from asyncgen.generation.strategies.beam_scorers.constrained import ConstrainedBeamSearchScorer

VOCABULARY = 12
PAD, END, OTHER_END = 0, 2, 3


def drive(
    scorer: Any, batch: int, beams: int, *, seed: int, prompt: int, longest: int
) -> dict[str, Any]:
    """Feed random log-probabilities until the scorer is done or the length is reached."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (batch, 1, prompt), generator=random)
    ids = ids.repeat(1, beams, 1).view(batch * beams, prompt)
    scores = torch.full((batch, beams), -1e9)
    scores[:, 0] = 0.0
    scores = scores.view(-1)
    origins: list[tuple[int, ...]] = [()] * (batch * beams)
    ends = [END, OTHER_END]
    for _ in range(longest - prompt):
        draws = torch.randn(batch * beams, VOCABULARY, generator=random) * 2
        totals = torch.log_softmax(draws, dim=-1) + scores[:, None]
        best = torch.topk(totals.view(batch, -1), 3 * beams)
        extra: dict[str, Any] = {}
        if isinstance(scorer, ConstrainedBeamSearchScorer):
            extra["scores_for_all_vocab"] = totals
        answer = scorer.process(
            ids,
            best.values,
            best.indices % VOCABULARY,
            best.indices // VOCABULARY,
            pad_token_id=PAD,
            eos_token_id=ends,
            beam_indices=origins,
            decoder_prompt_len=prompt,
            **extra,
        )
        rows = answer["next_beam_indices"]
        ids = torch.cat((ids[rows], answer["next_beam_tokens"][:, None]), dim=1)
        scores = answer["next_beam_scores"]
        origins = [(*origins[row], row) for row in rows.tolist()]
        if scorer.is_done:
            break
    result: dict[str, Any] = scorer.finalize(
        ids,
        scores,
        ids[:, -1],
        ids[:, -1],
        max_length=longest,
        pad_token_id=PAD,
        eos_token_id=ends,
        beam_indices=origins,
        decoder_prompt_len=prompt,
    )
    return result
