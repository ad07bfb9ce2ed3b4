"""Turns are short as long as somebody wants them to be."""

from __future__ import annotations

import sys

import pytest

from asyncgen_apps.turns import SHORT_TURN, short_turns


@pytest.fixture(params=[0.005, SHORT_TURN / 2])
def usual(request: pytest.FixtureRequest) -> float:
    """What the program has chosen."""
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
