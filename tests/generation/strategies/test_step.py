"""The vocabulary of strategies: defaults that mean nothing was settled."""

from __future__ import annotations

import torch

from asyncgen.generation.strategies import Outcome, Step


def test_a_prompt_chunk_settles_nothing() -> None:
    step = Step([[], []])
    assert step.tokens is None
    assert step.reasons == []
    assert step.logits is None


def test_outcomes_do_not_share_their_extras() -> None:
    first, second = Outcome(torch.zeros(1, 1)), Outcome(torch.zeros(1, 1))
    first.extra["sequences_scores"] = torch.zeros(1)
    assert second.extra == {}
