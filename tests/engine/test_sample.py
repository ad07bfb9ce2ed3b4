"""A sample of a request is a row of the scheduler: its name, its lengths, what it shares."""

from __future__ import annotations

from asyncgen.engine.sample import Sample
from asyncgen.engine.scheduling.pages import PagePool
from asyncgen.engine.scheduling.schedulers import FIFOScheduler
from tests.engine.making import request_for


def test_a_sample_is_its_request_for_the_scheduler() -> None:
    request, _ = request_for([1, 2, 3], n=2, do_sample=True, max_new_tokens=5, priority=4)
    first, second = (Sample(request, index, salt=b"x") for index in range(2))
    assert (first.request_id, second.request_id) == (request.id, f"{request.id}__child#0")
    assert first.tokens == second.tokens == [1, 2, 3]
    assert first.tokens is not second.tokens
    assert (second.max_new_tokens, second.priority, second.salt) == (5, 4, b"x")
    assert first.sampling is None and not first.decodes


def test_sampling_reads_the_tokens_of_the_row() -> None:
    sample = Sample(request_for([1, 2, 3])[0], 0)
    sample.begin_sampling()
    sample.tokens.append(4)
    assert sample.sampling is not None and sample.sampling.token_ids == [1, 2, 3, 4]


def test_the_scheduler_cuts_its_prompt() -> None:
    sample = Sample(request_for(list(range(8)), prefill_chunk_size=3, max_new_tokens=2)[0], 0)
    scheduler = FIFOScheduler(PagePool(8, 4))
    scheduler.add_waiting_request(sample)
    counts = []
    while not sample.num_computed == 8:
        rows = scheduler.schedule_batch(100, 1000)
        counts += [(row.count, row.is_last) for row in rows]
        scheduler.computed(rows)
    assert counts == [(3, False), (3, False), (2, True)]
