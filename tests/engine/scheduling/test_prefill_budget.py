"""Test the shares of prompts and of running streams in the steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import pytest

from asyncgen.engine.scheduling.prefill_budget import PrefillBudget, chunks_between
from asyncgen.engine.scheduling.state import RequestState, ScheduledRow
from tests.cases import for_each
from tests.engine.batches import Bench, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.scheduling.prefill_cost import PrefillCost

SHORT: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": []}
LONG: dict[str, Any] = SHORT | {"max_new_tokens": 200}


@for_each(
    ("num_admissible", "num_decoding", "expected"),
    [(0, 0, 1), (15, 0, 1), (16, 0, 2), (32, 0, 3), (48, 0, 4), (24, 25, 1)]
    + [(25, 25, 2), (75, 25, 4), (1000, 999, 2), (1, 1000, 1)],
)
def test_the_more_wait_the_more_chunks_come_between(
    num_admissible: int, num_decoding: int, expected: int
) -> None:
    assert chunks_between(num_admissible, num_decoding) == expected


def prompt(number: int) -> list[int]:
    """A hundred tokens that no other prompt begins with."""
    return [1 + number % 50, 1 + number // 50, *range(1, 99)]


def burst(clients: list[str], steps: int, **options: Any) -> tuple[list[int], list[int]]:
    """Return the prompt tokens that each step reads of prompts of 100 tokens, one of each
    client, and the tokens that it generates
    """
    bench = Bench(pages=20_000, **{"prefill_chunk_size": None, "max_running": 200, **options})
    bench.batch._prefill_budget._longest_wait = math.inf  # this machine may be slow
    bench.add([7, 7, 7], **LONG, client=clients[0])
    bench.step()
    bench.step()
    (first,) = bench.batch.states
    for number, client in enumerate(clients):
        bench.add(prompt(number), client=client, **SHORT)
    read, written, before = [], [], (0, len(first.tokens))
    for _ in range(steps):
        bench.step()
        others = [state for state in bench.batch.states if state is not first]
        now = sum(state.num_computed for state in others), len(first.tokens)
        read.append(now[0] - before[0])
        written.append(now[1] - before[1])
        before = now
    bench.engine.abort_all("cancelled")
    return read, written


def test_in_a_burst_those_that_decode_wait_for_several_chunks() -> None:
    assert burst(["a"] * 100, 9)[1] == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert burst(["a"] * 20, 4)[1] == [1, 0, 1, 1]
    assert burst(["a"] * 8, 4)[1] == [1, 1, 1, 1]


def test_each_chunk_is_a_step() -> None:
    read, written = burst(["a"] * 100, 5)
    assert written == [1, 0, 0, 0, 1]
    assert read[1:4] == [256, 256, 256]


def test_given_chunk_size_replaces_the_burst() -> None:
    read, written = burst(["a"] * 100, 4, prefill_chunk_size=64)
    assert written == [1, 1, 1, 1]
    assert read[:1] == [64]


def test_a_chunk_that_one_step_waits_for_is_smaller() -> None:
    assert burst(["a"] * 8, 1) == ([192], [1])
    assert burst(["a"] * 8, 1, prefill_chunk_size=256) == ([256], [1])
    assert burst(["a"] * 20, 2)[0][1] == 256  # of two they wait for
    bench = Bench(pages=20_000, prefill_chunk_size=None)
    bench.add(list(range(1, 101)) * 3, **LONG)  # alone, with nobody to hold up
    bench.step()
    assert [state.num_computed for state in bench.batch.states] == [256]
    bench.engine.abort_all("cancelled")


def test_running_streams_do_not_wait_for_requests_without_seat() -> None:
    assert burst(["a"] * 100, 3, max_running=8)[1] == [1, 1, 1]


def test_running_streams_do_not_wait_for_requests_that_cannot_start() -> None:
    bench = Bench(pages=260, page_size=4, prefill_chunk_size=None, max_running=200)
    bench.add([7, 7, 7], **LONG)
    bench.step()
    bench.step()
    (first,) = bench.batch.states
    for number in range(100):
        bench.add(prompt(number), **LONG)
    written = []
    for _ in range(30):
        before = len(first.tokens)
        bench.step()
        written.append(len(first.tokens) - before)
    # Eight fit; once they have begun, every step is for those that decode.
    assert 0 < bench.batch.scheduler.num_admissible and written[-20:] == [1] * 20
    bench.engine.abort_all("cancelled")


def test_one_client_makes_no_burst_beside_others() -> None:
    assert burst(["hog"] * 99 + ["late"], 2)[1] == [1, 1]
    # Of a hundred all have begun behind the first step, and nobody is new.
    assert burst([str(number) for number in range(100)], 2)[1] == [1, 1]


def together(
    number: int,
    clock: Callable[[], float] | None = None,
    *,
    longest_wait: float = math.inf,
    **options: Any,
) -> Bench:
    """An engine to which so many prompts of 100 tokens have come at once."""
    bench = Bench(pages=20_000, **{"prefill_chunk_size": None, "max_running": 200, **options})
    if clock is None:
        bench.batch._prefill_budget._longest_wait = longest_wait
    else:
        bench.batch._prefill_budget = PrefillBudget(256, 4, clock=clock, longest_wait=longest_wait)
    for which in range(number):
        bench.add(prompt(which), **LONG)
    return bench


def generated(bench: Bench) -> list[int]:
    """Return the number of tokens of each request."""
    return [len(state.tokens) - 100 for state in bench.batch.states]


def steps(bench: Bench, number: int) -> int:
    """Run so many; the most tokens that any request has got by then."""
    for _ in range(number):
        bench.step()
    return max(generated(bench))


@pytest.mark.parametrize("options", [{}, {"use_async_batching": True}])
def test_those_that_came_together_wait_for_each_other(options: dict[str, Any]) -> None:
    bench = together(40, **options)
    number = 0
    while not all(before := generated(bench)):
        assert max(before) <= 1
        bench.step()
        number += 1
    assert number == -(-40 * 100 // 256)
    steps(bench, 1)
    assert min(generated(bench)) >= 2 - bool(options)  # which are read a step later
    bench.engine.abort_all("cancelled")


@pytest.mark.parametrize("num_clients", [1, 5])
def test_streams_that_lose_their_pages_in_a_burst_end_as_they_do_alone(num_clients: int) -> None:
    params = {**LONG, "max_new_tokens": 40}
    bench = Bench(pages=300, prefill_chunk_size=None, max_running=200)  # of which each takes 35
    sinks = [
        bench.add(prompt(number), client=str(number % num_clients), **params)[1]
        for number in range(20)
    ]
    bench.run()
    assert bench.batch.scheduler.num_preemptions
    bench.require_empty()
    alone = Bench(pages=300, prefill_chunk_size=None)
    for number, sink in enumerate(sinks):
        expected = alone.add(prompt(number), **params)[1]
        alone.run()
        assert ids_of(sink) == ids_of(expected)


@pytest.mark.parametrize(("number", "expected"), [(15, 2), (16, 1)])
def test_a_few_that_come_together_do_not_wait(number: int, expected: int) -> None:
    bench = together(number)
    assert steps(bench, 2) == expected
    bench.engine.abort_all("cancelled")


def test_no_burst_with_a_given_chunk_size() -> None:
    bench = together(40, prefill_chunk_size=256)
    assert steps(bench, 2) == 2
    bench.engine.abort_all("cancelled")


def test_no_burst_beside_a_running_stream() -> None:
    bench = together(1)
    assert steps(bench, 2) == 2
    for number in range(1, 100):
        bench.add(prompt(number), **LONG)
    assert steps(bench, 5) >= 4
    bench.engine.abort_all("cancelled")


def test_burst_delays_streams_by_seconds_at_most() -> None:
    now = [0.0]
    bench = together(100, lambda: now[0])
    assert steps(bench, 10) == 1
    now[0] = 2.9
    assert steps(bench, 1) == 1
    now[0] = 3.0
    assert steps(bench, 1) == 2
    assert steps(bench, 4) == 3  # from here on they are streams that run
    bench.engine.abort_all("cancelled")


def test_in_a_burst_nobody_waits_for_long_at_a_time() -> None:
    now = [0.0]
    bench = together(100, lambda: now[0], longest_wait=0.1)
    found = []
    for _ in range(12):
        found.append(steps(bench, 1))
        now[0] += 0.04  # of a step
    # The first tokens are there behind the first step, then three go by without them.
    assert found == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    bench.engine.abort_all("cancelled")


def test_no_stream_waits_for_long_behind_several_chunks() -> None:
    now = [0.0]
    bench = together(1, lambda: now[0], longest_wait=0.1)
    assert steps(bench, 2) == 2
    for number in range(1, 100):
        bench.add(prompt(number), **LONG)
    found = []
    for _ in range(5):
        now[0] += 0.11
        found.append(steps(bench, 1))
    assert found == [3, 3, 4, 4, 5]  # of four chunks there are two
    bench.engine.abort_all("cancelled")


def test_later_requests_make_no_new_burst() -> None:
    now = [0.0]
    bench, found = together(40, lambda: now[0]), {}
    for number in range(40, 120):  # three more with every step, of which one reads two and a half
        now[0] += 0.1
        for which in range(3):
            bench.add(prompt(3 * number + which), **LONG)
        found[round(now[0], 1)] = steps(bench, 1)
    assert found[2.9] == 1 and found[3.2] > 1
    assert found[8.0] >= 10
    bench.engine.abort_all("cancelled")


def test_once_all_have_gone_there_may_be_another_burst() -> None:
    now = [0.0]
    bench = together(40, lambda: now[0])
    for _ in range(2):
        assert steps(bench, 10) == 1
        assert steps(bench, 10) > 1  # the burst is over
        bench.batch.abort_all("cancelled")
        now[0] += 100.0
        for which in range(40):
            bench.add(prompt(100 + which), **LONG)
    bench.engine.abort_all("cancelled")


def test_a_backlog_that_does_not_decode_holds_no_stream_up_for_long() -> None:
    now = [0.0]
    pace = PrefillBudget(256, 4, clock=lambda: now[0])
    for _ in range(50):  # texts to embed, say
        pace.see(100, 0)
        now[0] += 0.1
    pace.see(100, 1)
    pace.note([], alone=pace.are_alone)
    assert not pace.are_alone


def test_a_scheduler_that_leaves_streams_out_makes_no_burst() -> None:
    bench = together(1, scheduler="prefill_first")
    assert steps(bench, 3) == 3
    (first,) = bench.batch.states
    for number in range(40):
        bench.add([1 + number, *list(range(1, 99)) * 3], **LONG)
    before = len(first.tokens)
    steps(bench, 12)
    assert len(first.tokens) > before
    bench.engine.abort_all("cancelled")


def test_in_a_burst_chunks_are_whole() -> None:
    class Halves:
        def chunk(self, chunk: int, depth: int) -> int:
            return chunk // 2

    state, cost = RequestState("a", [1] * 1000), cast("PrefillCost", Halves())
    for number, expected in ((100, 256), (5, 96)):
        pace = PrefillBudget(256, 4, cost, beside=192)
        pace.see(number, 0)
        pace.note([ScheduledRow(state, 0, 256, [], False, ())], alone=False)
        pace.see(number, 1)
        assert pace.tokens == expected
