"""The confidence threshold: when a draft stops, and what it learns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.drafters.drafter import ConfidenceThreshold
from tests.cases import for_each


def test_stops_below_the_threshold_only() -> None:
    confidence = ConfidenceThreshold(0.4)
    assert confidence.stops(0.39)
    assert not confidence.stops(0.4)


def test_zero_never_stops_and_never_learns() -> None:
    confidence = ConfidenceThreshold(0.0)
    for accepted in (0, 1) * 10:
        confidence.update([0.1], accepted)
    assert not confidence.is_on
    assert confidence.threshold == 0.0
    assert not confidence.stops(0.0)


def test_learns_to_separate_right_from_wrong() -> None:
    confidence = ConfidenceThreshold(0.1)
    for _ in range(5):
        confidence.update([0.9, 0.8, 0.5], accepted=2)
    assert confidence.threshold == 0.8
    assert confidence.stops(0.5)


def test_guesses_after_the_first_wrong_one_are_not_counted() -> None:
    one, other = ConfidenceThreshold(0.5), ConfidenceThreshold(0.5)
    for _ in range(5):
        one.update([0.9, 0.3, 0.95, 0.1], accepted=1)
        other.update([0.9, 0.3], accepted=1)
    assert one.threshold == other.threshold


def test_few_guesses_or_one_kind_change_nothing() -> None:
    confidence = ConfidenceThreshold(0.5)
    confidence.update([0.9, 0.2], accepted=1)
    assert confidence.threshold == 0.5
    confidence = ConfidenceThreshold(0.5)
    for _ in range(10):
        confidence.update([0.9], accepted=1)
    assert confidence.threshold == 0.5


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_the_threshold_is_the_cheapest_of_all(guesses: list[tuple[float, bool]]) -> None:
    confidence = ConfidenceThreshold(0.5)
    for probability, is_right in guesses:
        confidence.update([probability], int(is_right))
    right = [each for each, is_right in guesses if is_right]
    wrong = [each for each, is_right in guesses if not is_right]
    if len(guesses) < 6 or not right or not wrong:
        assert confidence.threshold == 0.5
        return

    def cost(threshold: float) -> float:
        passed = sum(each >= threshold for each in wrong) / len(wrong)
        missed = sum(each < threshold for each in right) / len(right)
        return passed + 3 * missed

    best = min(cost(each) for each, _ in guesses)
    assert cost(confidence.threshold) == pytest.approx(best)


@for_each("threshold", [-0.1, 1.1, True, "high"])
def test_thresholds_out_of_range_are_refused(threshold: Any) -> None:
    with pytest.raises(InvalidRequestError, match="assistant_confidence_threshold"):
        ConfidenceThreshold(threshold)
