"""Turns are short as long as somebody wants them to be."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from asyncgen_apps.serving.time_slices import SHORT_TURN, SLICE, give_way, rest, short_turns, slices


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
