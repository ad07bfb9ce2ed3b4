"""Parameters of a request that resumes behind tokens generated elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen_apps.serving.resumption import (
    LEAST_SECONDS,
    RepeatedOutput,
    count_samples,
    given_ids,
    resumed_params,
)


def test_counts_the_samples_that_a_request_asks_for() -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"n": 3}, 3),
        ({"num_return_sequences": 2, "n": None}, 2),
        ({"n": 0}, 1),
        ({"n": -4}, 1),
        ({"n": "two"}, 1),
    ]
    for params, expected in cases:
        assert count_samples(params) == expected, params


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [[], []]),
        ([], [[], []]),
        ([1, 2], [[1, 2], []]),
        ((1, 2), [[1, 2], []]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([(1,), (2, 3)], [[1], [2, 3]]),
        ([[1], [2], [3]], [[1], [2]]),
        ([[1], "x"], [[1], []]),
        ("x", [[], []]),
        (7, [[], []]),
        ({}, [[], []]),
    ],
)
def test_splits_given_ids_by_sample(value: Any, expected: list[list[int]]) -> None:
    assert given_ids({"generated_ids": value}, 2) == expected


def test_adds_what_was_generated_to_what_was_given() -> None:
    params = {"generated_ids": [1], "prompt_logprobs": 1, "fingerprint": "f", "seed": 2}
    kept = dict(params)
    assert resumed_params(params, [[5, 6]]) == {
        "generated_ids": [1, 5, 6],
        "fingerprint": "f",
        "seed": 2,
    }
    assert resumed_params({"n": 2}, [[], [7]], seed=3) == {
        "n": 2,
        "seed": 3,
        "generated_ids": [[], [7]],
    }
    assert resumed_params(params, [[]]) == params == kept


def test_takes_the_elapsed_time_from_the_limit() -> None:
    cases: list[tuple[Any, float, Any]] = [
        (5, 2.0, 3.0),
        (5, 9.0, LEAST_SECONDS),
        (5, 0.0, 5),
        (None, 2.0, None),
        ("soon", 2.0, "soon"),
    ]
    for limit, elapsed, expected in cases:
        found = resumed_params({"max_time": limit}, [], elapsed=elapsed)
        assert found == {"max_time": expected}, (limit, elapsed)


def test_drops_what_a_restarted_request_generates_again() -> None:
    repeated = RepeatedOutput((1, 2, 3), 4)
    assert repeated and repeated.drop([1], "") == (1, 0)
    assert repeated.drop([2, 3, 4], "abcde") == (2, 4)
    assert not repeated and repeated.drop([5], "f") == (0, 0)
    behind = RepeatedOutput((), 2)
    assert behind and behind.drop([], "a") == (0, 1)
    assert RepeatedOutput((1, 2), 0).drop([1, 3], "") is None
