"""Schedules of the number of drafted tokens."""

from __future__ import annotations

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.drafters import Schedule


def test_constant_stays() -> None:
    schedule = Schedule(5)
    for accepted in (5, 0, 3):
        schedule.update(accepted)
        assert schedule.count == 5


@pytest.mark.parametrize("kind", ["heuristic", "heuristic_transient"])
def test_heuristic_grows_by_two_and_shrinks_by_one(kind: str) -> None:
    schedule = Schedule(2, kind)
    counts = []
    for accepted in (2, 4, 3, 0, 0, 0, 0, 0, 0, 1):
        schedule.update(accepted)
        counts.append(schedule.count)
    assert counts == [4, 6, 5, 4, 3, 2, 1, 1, 1, 3]


@pytest.mark.parametrize(("count", "kind"), [(0, "constant"), (True, "constant"), (1, "linear")])
def test_what_is_refused(count: int, kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="num_assistant_tokens"):
        Schedule(count, kind)
