"""A sequence of a request: a row of the scheduler, with tokens, state and ends of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.engine.batch.sequence import Sequence
from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.generation.logits.filters import TemperatureLogitsWarper
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from tests.doubles.models import EOS
from tests.engine.making import request_for, sequence_of

CPU = torch.device("cpu")


def test_samples_of_a_request_have_state_of_their_own() -> None:
    request, _ = request_for(
        [1, 2],
        n=2,
        do_sample=True,
        no_repeat_ngram_size=2,
        presence_penalty=1.0,
        temperature=0.5,
        top_k=0,
    )
    rows = [sequence_of(request, index) for index in range(2)]
    for first, second, original in zip(
        rows[0].processors, rows[1].processors, rows[0].request.processors, strict=True
    ):
        keeps_state = not isinstance(original, TemperatureLogitsWarper)
        assert (first is not second) == (first is not original) == keeps_state
    draws = [row.draw.key(row.index, 2) for row in rows]
    assert len(draws) == 2 and draws[0] != draws[1]


def test_ids_grow_in_place() -> None:
    row = sequence_of(request_for([1, 2, 3])[0], 0)
    live = [1, 2, 3]
    row.tokens = live
    first = row.input_ids(CPU)
    assert first.tolist() == [[1, 2, 3]]
    for token in range(100):
        live.append(token)
        assert row.input_ids(CPU).tolist() == [live]
    assert first.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("token", "length", "wanted"),
    [(5, 3, None), (EOS, 3, "stop"), (5, 6, "length"), (EOS, 6, "stop")],
)
def test_reasons_are_those_of_the_request(token: int, length: int, wanted: str | None) -> None:
    row = sequence_of(request_for([1, 2], max_new_tokens=4)[0], 0)
    row.tokens = [1, 2, *[4] * (length - 3), token]
    assert row.reason_to_end(None) == wanted
    ids = torch.tensor([row.tokens])
    assert row.request.stop_checks.reasons([token], [True], length, ids, torch.zeros(1, 9)) == [
        wanted
    ]


def test_a_cancelled_row_ends() -> None:
    request, _ = request_for([1, 2])
    row = sequence_of(request, 0)
    row.tokens.append(3)
    request.cancel.set()
    assert row.reason_to_end(None) == "cancelled"


def test_criteria_of_users_see_their_row_alone() -> None:
    seen: list[Any] = []

    def ends_at_7(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        seen.append((input_ids.tolist(), scores))
        return input_ids[:, -1] == 7

    criteria = StoppingCriteriaList([ends_at_7])
    request, _ = request_for([1, 2], n=2, do_sample=True, stopping_criteria=criteria)
    rows = [sequence_of(request, index) for index in range(2)]
    rows[0].tokens.append(7)
    rows[1].tokens.append(8)
    scores = torch.zeros(1, 9)
    assert [row.reason_to_end(scores) for row in rows] == ["stop", None]
    assert seen == [([[1, 2, 7]], scores), ([[1, 2, 8]], scores)]


def test_a_sample_is_its_request_for_the_scheduler() -> None:
    request, _ = request_for([1, 2, 3], n=2, do_sample=True, max_new_tokens=5, priority=4)
    first, second = (Sequence(request, index, salt=b"x") for index in range(2))
    assert (first.request_id, second.request_id) == (request.id, f"{request.id}__child#0")
    assert first.tokens == second.tokens == [1, 2, 3]
    assert first.tokens is not second.tokens
    assert (second.max_new_tokens, second.priority, second.salt) == (5, 4, b"x")
    assert not (first.has_begun or first.decodes or first.processors)


def test_the_scheduler_cuts_its_prompt() -> None:
    sequence = Sequence(request_for(list(range(8)), prefill_chunk_size=3, max_new_tokens=2)[0], 0)
    scheduler = FIFOScheduler(BlockPool(8, 4))
    scheduler.add_waiting_request(sequence)
    counts = []
    while not sequence.num_computed == 8:
        rows = scheduler.schedule_batch(100, 1000)
        counts += [(row.count, row.is_last) for row in rows]
        scheduler.computed(rows)
    assert counts == [(3, False), (3, False), (2, True)]
