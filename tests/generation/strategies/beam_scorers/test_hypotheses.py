"""N-best lists keep the best, and know when nothing better is to be expected."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.beam_scorers.base import BeamHypotheses
from tests.cases import for_each

SUMS = st.lists(st.floats(-50, 0, width=32), min_size=1, max_size=12, unique=True)


@given(SUMS, st.integers(1, 4), st.sampled_from([0.0, 1.0, -0.5, 2.0]))
def test_the_best_are_kept(sums: list[float], size: int, penalty: float) -> None:
    found = BeamHypotheses(size, penalty, False)
    scores = []
    for place, total in enumerate(sums):
        length = place % 3 + 1
        found.add(torch.arange(length), total, (place,), generated_len=length)
        scores.append(total / length**penalty)
    expected = sorted(scores, reverse=True)[:size]
    assert sorted((score for score, _, _ in found.beams), reverse=True) == expected
    assert found.worst_score == expected[-1]
    assert len(found) == len(expected)
    best = found.best
    assert best is not None
    assert best[0] == expected[0]


def test_an_empty_list() -> None:
    found = BeamHypotheses(2, 1.0, True)
    assert found.best is None
    assert found.worst_score == 1e9
    assert not found.is_done(0.0, 9)


def test_the_whole_length_counts_where_none_is_given() -> None:
    found = BeamHypotheses(1, 1.0, True)
    found.add(torch.arange(4), -8.0)
    assert found.beams[0][0] == -2.0


@for_each(
    ("early", "best", "length", "done"),
    [
        (True, 0.0, 3, True),
        (False, -5.0, 5, False),  # at this length it would be better than the worst
        (False, -15.0, 5, True),
        ("never", -15.0, 5, False),  # at 12 tokens it could be
        ("never", -25.0, 5, True),
    ],
)
def test_end_of_a_search(early: bool | str, best: float, length: int, done: bool) -> None:
    found = BeamHypotheses(1, 1.0, early, max_length=12)
    assert not found.is_done(best, length, 2)
    found.add(torch.arange(3), -6.0, generated_len=3)  # scores -2
    found.worst_score = -2.5
    assert found.is_done(best, length, 2) is done


def test_a_string_needs_a_length() -> None:
    with pytest.raises(InvalidRequestError, match="max_length"):
        BeamHypotheses(2, 1.0, "never")
