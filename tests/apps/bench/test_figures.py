from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.bench.figures import hardware, overhead, percentile, versions

samples = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 500), (0.99, 990), (0.999, 999), (1.0, 1000), (0.0, 1)]
)
def test_percentiles_of_a_thousand(share: float, value: float) -> None:
    assert percentile(range(1000, 0, -1), share) == value


@given(samples, st.floats(0, 1))
def test_a_percentile_is_a_sample_that_the_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    value = percentile(values, share)
    assert value in values
    assert sum(other <= value for other in values) >= share * len(values) - 1e-6
    assert sum(other < value for other in values) <= share * len(values) + 1e-6


@given(samples, st.floats(0.01, 1), st.floats(0.01, 1))
def test_percentiles_rise(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert percentile(values, low) <= percentile(values, high)
    assert percentile(values, 1) == max(values)


def test_overhead_compares_neighbours() -> None:
    # The machine slows down from pair to pair; the ratio of neighbours does not care.
    assert overhead([1.02, 2.04, 4.08], [1, 2, 4]) == pytest.approx(0.02)
    with pytest.raises(ValueError, match="zip"):
        overhead([1.0], [1.0, 2.0])


def test_the_machine_is_described() -> None:
    assert hardware()["cpu"]
    assert versions()["torch"][0].isdigit()
