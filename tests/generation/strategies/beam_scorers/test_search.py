"""The standard scorer: what it returns is ranked, ends as documented, and tells its origin."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.generation.strategies.beam_scorers.search import BeamSearchScorer
from tests.cases import for_each
from tests.generation.beam_scorers.candidates import END, OTHER_END, PAD, drive


@for_each("early", [True, False, "never"])
@for_each("seed", range(8))
def test_returned_sequences(seed: int, early: bool | str) -> None:
    scorer = BeamSearchScorer(
        3, 4, "cpu", do_early_stopping=early, num_beam_hyps_to_keep=3, max_length=12
    )
    found = drive(scorer, 3, 4, seed=seed, prompt=2, longest=12)
    scores = found["sequence_scores"].view(3, 3)
    assert torch.equal(scores, scores.sort(dim=1, descending=True).values)
    for row, (ids, origins) in enumerate(
        zip(found["sequences"].tolist(), found["beam_indices"].tolist(), strict=True)
    ):
        length = found["sequence_lengths"][row]
        body = ids[2 : length - 1]
        assert END not in body
        assert OTHER_END not in body
        assert all(token == PAD for token in ids[length:])
        assert ids[length - 1] == END or length == 12
        assert all(origin // 4 == row // 3 for origin in origins if origin >= 0)
        assert sum(origin >= 0 for origin in origins) == length - 2


def test_a_prompt_that_is_done_waits_for_the_others() -> None:
    scorer = BeamSearchScorer(2, 2, "cpu", do_early_stopping=True, max_length=9)
    ids = torch.tensor([[5], [5], [6], [6]])
    scores = torch.tensor([[-0.1, -0.2, -0.3, -0.4], [-0.1, -0.2, -0.3, -0.4]])
    tokens = torch.tensor([[END, END, 7, 8], [7, 8, 9, 10]])
    beams = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 1]])
    ends: dict[str, Any] = {"pad_token_id": PAD, "eos_token_id": END}
    first = scorer.process(ids, scores, tokens, beams, **ends)
    assert first["next_beam_tokens"].tolist() == [7, 8, 7, 8]
    assert scorer.is_prompt_done(0)
    assert not scorer.is_done
    assert scorer.live_groups(0) == []
    assert scorer.live_groups(1) == [0]
    best = scorer.best(0)
    assert best is not None
    assert best[1].tolist() == [5]
    assert scorer.best(1) is None
    ids = torch.tensor([[5, 7], [5, 8], [6, 7], [6, 8]])
    second = scorer.process(ids, scores, tokens, beams, **ends)
    assert second["next_beam_tokens"].tolist() == [PAD, PAD, 7, 8]
    with pytest.raises(ValueError, match="pad_token_id"):
        scorer.process(ids, scores, tokens, beams, eos_token_id=END)


def test_too_few_candidates_go_on() -> None:
    scorer = BeamSearchScorer(1, 2, "cpu")
    ids, scores = torch.tensor([[5], [5]]), torch.tensor([[-0.1, -0.2, -0.3]])
    tokens, beams = torch.tensor([[END, 7, END]]), torch.tensor([[0, 1, 1]])
    with pytest.raises(ValueError, match="only 1 of 2 beams"):
        scorer.process(ids, scores, tokens, beams, pad_token_id=PAD, eos_token_id=END)
