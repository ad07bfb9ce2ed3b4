from __future__ import annotations

import time

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.bench.ticker import PERIOD, missed_ticks, ticking


def test_a_stall_owes_every_tick_it_swallowed() -> None:
    lateness: list[float] = []
    due = missed_ticks(10.0, 10.0 + 3.5 * PERIOD, lateness)
    assert lateness == pytest.approx([3.5 * PERIOD, 2.5 * PERIOD, 1.5 * PERIOD, 0.5 * PERIOD])
    assert due == pytest.approx(10.0 + 4 * PERIOD)
    assert missed_ticks(due, due - 1e-4, lateness) == due
    assert len(lateness) == 4


@given(st.floats(0, 0.2))
def test_no_tick_is_early_and_the_next_one_is_ahead(delay: float) -> None:
    lateness: list[float] = []
    now = 5.0 + delay
    due = missed_ticks(5.0, now, lateness)
    assert now < due <= now + PERIOD + 1e-9
    assert all(late >= 0 for late in lateness)


@pytest.mark.anyio
async def test_a_blocked_loop_is_seen() -> None:
    async with ticking() as lateness:
        await anyio.sleep(2 * PERIOD)
        # The loop is meant to stand still here.
        time.sleep(0.1)  # noqa: ASYNC251
    assert max(lateness) >= 0.08
    assert len([late for late in lateness if late > 2 * PERIOD]) >= 10


@pytest.mark.anyio
async def test_an_error_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ticking():
            raise ZeroDivisionError
