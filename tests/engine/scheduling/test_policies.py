"""The two documented orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler
from asyncgen.engine.scheduling.state import RequestStatus
from tests.doubles.paged import Loop

if TYPE_CHECKING:
    from asyncgen.engine.scheduling.state import ScheduledRow


def shape(rows: list[ScheduledRow]) -> list[tuple[str, int]]:
    """Return the requests of a step and their numbers of tokens."""
    return [(row.state.request_id, row.count) for row in rows]


def test_fifo_decodes_before_it_continues_a_prefill() -> None:
    loop = Loop(FIFOScheduler(BlockPool(64, 4)), token_budget=8)
    for name in "ab":
        loop.add([ord(name)], 20, name=name)
    loop.step()
    long = loop.add(range(100, 115), 2, name="long")
    assert shape(loop.step()) == [("a", 1), ("b", 1), ("long", 6)]
    assert long.status.name == "PREFILLING"
    loop.add([1], 2, name="late")
    assert shape(loop.step()) == [("a", 1), ("b", 1), ("long", 6)]
    assert shape(loop.step()) == [("a", 1), ("b", 1), ("long", 3), ("late", 1)]
    assert long.status.name == "DECODING"
    assert shape(loop.step()) == [("a", 1), ("b", 1), ("long", 1), ("late", 1)]


def test_prefill_first_completes_started_prompts() -> None:
    loop = Loop(PrefillFirstScheduler(BlockPool(64, 4)), token_budget=8)
    for name in "ab":
        loop.add([ord(name)], 20, name=name)
    loop.step()
    loop.add(range(100, 119), 2, name="long")
    assert shape(loop.step()) == [("a", 1), ("b", 1), ("long", 6)]
    loop.add([1], 2, name="late")
    assert shape(loop.step()) == [("long", 8)]
    assert shape(loop.step()) == [("long", 5), ("a", 1), ("b", 1), ("late", 1)]
    assert shape(loop.step()) == [("a", 1), ("b", 1), ("long", 1), ("late", 1)]


def test_statuses_tell_where_a_request_is() -> None:
    scheduler = FIFOScheduler(BlockPool(64, 4))
    loop = Loop(scheduler, token_budget=4)
    state = loop.add(range(7), 3)
    seen = [state.status]
    for _ in range(3):
        rows = scheduler.schedule_batch(4, 100)
        seen.append(state.status)
        scheduler.computed(rows)
        seen.append(state.status)
        if rows[0].is_last:
            state.tokens.append(1)
    assert [status.name for status in seen] == [
        "PENDING",
        "PREFILLING",
        "PREFILLING",
        "PREFILLING",
        "DECODING",
        "DECODING",
        "DECODING",
    ]


@pytest.mark.parametrize(("margin", "running"), [(0.0, 10), (0.2, 8), (0.5, 5), (1.0, 1)])
def test_safety_margin_reserves_blocks_for_decoding(margin: float, running: int) -> None:
    scheduler = FIFOScheduler(BlockPool(10, 4), safety_margin=margin)
    loop = Loop(scheduler, token_budget=100)
    for number in range(12):
        loop.add([number], 3)
    loop.step()
    assert scheduler.num_running == running
    loop.drain()


def test_safety_margin_is_ignored_when_no_request_runs() -> None:
    loop = Loop(FIFOScheduler(BlockPool(10, 4)), token_budget=100)
    state = loop.add(range(39), 2)
    loop.step()
    assert state.generated_len() == 1


@pytest.mark.parametrize("margin", [-0.1, 1.5, float("nan")])
def test_the_margin_is_a_share(margin: float) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        FIFOScheduler(BlockPool(10, 4), safety_margin=margin)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(4, 20),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=8),
)
def test_arriving_prompts_do_not_delay_decoding(
    token_budget: int, arrivals: list[tuple[int, int]]
) -> None:
    loop = Loop(FIFOScheduler(BlockPool(200, 4)), token_budget=token_budget)
    loop.add([1], 100)
    loop.step()
    for length, gap in arrivals:
        loop.add([loop.added] * length, 50)
        for _ in range(gap):
            decoding = [
                state
                for state in loop.scheduler.running()
                if state.status is RequestStatus.DECODING
            ]
            rows = loop.step()
            assert [row.state for row in rows[: len(decoding)]] == decoding
            assert all(row.count == 1 for row in rows[: len(decoding)])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_a_late_joiner_has_its_first_token_with_its_prompt(
    length: int, others: int, shared: bool
) -> None:
    loop = Loop(FIFOScheduler(BlockPool(200, 4)), token_budget=8)
    for number in range(others):
        loop.add([1] * 20 if shared else [number], 100)
    for _ in range(12):
        loop.step()
    late = loop.add([1] * length, 10)
    chunk = 8 - others
    steps = 0
    while not late.generated_len():
        loop.step()
        steps += 1
    assert steps <= -(-length // chunk) + 1


@pytest.mark.parametrize("order", [FIFOScheduler, PrefillFirstScheduler])
@settings(max_examples=25, deadline=None)
@given(
    cache_budget=st.integers(1, 60),
    token_budget=st.integers(1, 20),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_everybody_ends_whatever_the_budgets(
    order: type[FIFOScheduler] | type[PrefillFirstScheduler],
    cache_budget: int,
    token_budget: int,
    lengths: list[int],
) -> None:
    loop = Loop(order(BlockPool(60, 4)), token_budget=token_budget, cache_budget=cache_budget)
    for number, length in enumerate(lengths):
        loop.add([number] * length, 3)
    loop.drain()
    assert len(loop.ended) == len(lengths)
