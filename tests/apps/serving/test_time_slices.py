"""Turns are short as long as somebody wants them to be."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.lowlevel
import pytest

from asyncgen_apps.serving.time_slices import (
    BYTES_OF_A_TURN,
    SHORT_TURN,
    SLICE,
    LoopTurns,
    give_way,
    rest,
    short_turns,
    slices,
)


@pytest.fixture(params=[0.005, SHORT_TURN / 2])
def usual(request: pytest.FixtureRequest) -> float:
    """Keep the switch interval of the program."""
    before = sys.getswitchinterval()
    request.addfinalizer(lambda: sys.setswitchinterval(before))
    sys.setswitchinterval(request.param)
    return float(request.param)


def test_turns_are_short_until_the_last_one_leaves(usual: float) -> None:
    one, other = short_turns(), short_turns()
    short = pytest.approx(min(usual, SHORT_TURN))
    one.__enter__()
    assert sys.getswitchinterval() == short
    other.__enter__()
    one.__exit__(None, None, None)
    assert sys.getswitchinterval() == short
    other.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(usual)
    with pytest.raises(ZeroDivisionError), short_turns():
        raise ZeroDivisionError
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_work_that_nobody_wants_ends_between_slices() -> None:
    def check() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), slices(check):
        while True:
            give_way()
    give_way()


def test_a_thread_in_slices_rests_when_one_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    rests: list[float] = []
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.time.sleep", rests.append)
    give_way()
    with slices():
        give_way()
        now[0] += SLICE / 2
        give_way()
        assert rests == []
        now[0] += SLICE
        give_way()
        give_way()
        assert rests == [SLICE]
        other = slices()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(give_way).result()  # it is not there that slices are asked for
            thread.submit(other.__enter__).result()
            now[0] += SLICE
            give_way()
            thread.submit(other.__exit__, None, None, None).result()
    assert rests == [SLICE, rest(2)]
    now[0] += SLICE
    give_way()
    assert len(rests) == 2


@pytest.mark.parametrize("count", [1, 2, 7])
def test_all_that_work_in_slices_leave_half_of_the_time(count: int) -> None:
    assert count * SLICE / (SLICE + rest(count)) == pytest.approx(1 / 2)


@pytest.mark.anyio
async def test_all_replies_together_take_one_turn_of_the_loop() -> None:
    turns, now, spent = LoopTurns(), [0], dict[int, int]()

    async def lay_out() -> None:
        for _ in range(40):
            async with turns as turn:
                spent[now[0]] = spent.get(now[0], 0) + BYTES_OF_A_TURN // 4
                turn.spend(BYTES_OF_A_TURN // 4)

    async def count() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            now[0] += 1

    async with anyio.create_task_group() as counting:
        counting.start_soon(count)
        async with anyio.create_task_group() as replies:
            for _ in range(8):
                replies.start_soon(lay_out)
        counting.cancel_scope.cancel()
    assert sum(spent.values()) == 80 * BYTES_OF_A_TURN
    assert max(spent.values()) <= 2 * BYTES_OF_A_TURN


@pytest.mark.anyio
async def test_a_turn_ends_with_an_error() -> None:
    turns = LoopTurns()
    with pytest.raises(ZeroDivisionError):
        async with turns as turn:
            turn.spend(BYTES_OF_A_TURN)
            raise ZeroDivisionError
    with anyio.fail_after(10):
        async with turns:
            pass
