"""Drafts of a model: bounded pieces, one cache kept right, early exit that leaves no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.strategies.drafters.assistant import (
    AssistantDrafter,
    AssistantForward,
    EarlyExit,
)
from asyncgen.generation.strategies.drafters.drafter import ConfidenceThreshold, DraftSchedule
from asyncgen.generation.strategies.forward import Forward
from tests.cases import for_each
from tests.doubles.engine import greedy_ids
from tests.doubles.models import EOS, TableModel
from tests.generation.strategies.pairs import pair
from tests.generation.strategies.plans import plan_of

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen.generation.strategies.step import Drafter, Proposal

PROMPT = [1, 2, 3, 4, 5]


def drafter_of(
    model: TableModel, *, count: int = 4, threshold: float = 0.0, chunk: int | None = None
) -> AssistantDrafter:
    return AssistantDrafter(
        AssistantForward(plan_of(model, [PROMPT], new_tokens=9)),
        DraftSchedule(count),
        ConfidenceThreshold(threshold),
        processors=LogitsProcessorList(),
        eos_token_ids=[EOS],
        prefill_chunk=chunk,
    )


def drafted(drafter: Drafter, ids: list[int], room: int = 100) -> tuple[Proposal, int]:
    """The proposal, and the pieces it came in."""
    drafting = drafter.propose(torch.tensor([ids]), room)
    pieces = 1
    while True:
        try:
            next(drafting)
        except StopIteration as end:
            return end.value, pieces
        pieces += 1


def test_one_piece_is_one_forward_pass() -> None:
    model = TableModel()
    proposal, pieces = drafted(drafter_of(model, chunk=2), PROMPT)
    assert proposal.token_ids.tolist() == greedy_ids(model, PROMPT, 4)
    assert model.core.forwards == [(1, 2), (1, 2), (1, 1), (1, 1), (1, 1), (1, 1)]
    assert pieces == model.num_forwards


@for_each("accepted", range(5))
def test_drafter_recomputes_only_changed_tokens(accepted: int) -> None:
    model = TableModel()
    drafter = drafter_of(model)
    proposal, _ = drafted(drafter, PROMPT)
    drafter.update(accepted)
    model.core.forwards.clear()
    ids = [*PROMPT, *proposal.token_ids[:accepted].tolist(), 77]
    again, _ = drafted(drafter, ids)
    assert again.token_ids.tolist() == greedy_ids(model, ids, 4)
    assert model.core.forwards[0] == (1, 2 if accepted == 4 else 1)


def test_no_more_than_there_is_room_for() -> None:
    proposal, _ = drafted(drafter_of(TableModel()), PROMPT, room=2)
    assert len(proposal.token_ids) == 2


def test_ends_with_an_end_token_and_with_doubt() -> None:
    scripted = TableModel(script=[7, 8], prompt_length=len(PROMPT))
    proposal, _ = drafted(drafter_of(scripted), PROMPT)
    assert proposal.token_ids.tolist() == [7, 8, EOS]
    doubtful = TableModel()
    proposal, _ = drafted(drafter_of(doubtful, threshold=1.0), PROMPT)
    assert len(proposal.token_ids) == 1


def test_early_exit_uses_the_first_layers_and_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    _, ours = pair(tmp_path)
    ids = torch.tensor([PROMPT])
    cache = DynamicCache()
    plan = plan_of(ours, [PROMPT], new_tokens=9, cache=cache)
    Forward(plan)(ids[:, :3])
    kept = [(keys.clone(), values.clone()) for keys, values in cache]
    drafter = AssistantDrafter(
        EarlyExit(plan, 2),
        DraftSchedule(3),
        ConfidenceThreshold(0.0),
        processors=LogitsProcessorList(),
    )
    with torch.no_grad():
        proposal, _ = drafted(drafter, PROMPT)
        expected = ids
        for _ in range(3):
            collected: list[torch.Tensor] = []
            forward = Forward(plan_of(ours, [PROMPT], new_tokens=9))
            forward.hidden(expected, collected)
            exited = ours.core.norm(collected[2][:, -1:])
            token = ours.core.project(exited)[:, -1].argmax(-1, keepdim=True)
            expected = torch.cat((expected, token), dim=1)
    assert proposal.token_ids.tolist() == expected[0, len(PROMPT) :].tolist()
    for (keys, values), (old_keys, old_values) in zip(cache, kept, strict=True):
        assert torch.equal(keys, old_keys)
        assert torch.equal(values, old_values)
