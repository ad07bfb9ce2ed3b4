"""Temperature, top-k, top-p and min-p, against transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits import filters
from tests.cases import for_each
from tests.generation.logits.against import Case, assert_agrees, assert_same, by_row, cases

probabilities = st.floats(0.01, 0.99)


@settings(max_examples=40, deadline=None)
@given(cases(), st.floats(0.1, 5.0))
def test_temperature(case: Case, value: float) -> None:
    ours = filters.TemperatureLogitsWarper(value)
    assert_agrees(ours, reference.TemperatureLogitsWarper(value), case)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 70), st.integers(1, 4))
def test_top_k(case: Case, k: int, least: int) -> None:
    ours = filters.TopKLogitsWarper(k, min_tokens_to_keep=least)
    assert_agrees(ours, reference.TopKLogitsWarper(k, min_tokens_to_keep=least), case)


@settings(max_examples=120, deadline=None)
@given(cases((7, 60, 1500, 20000)), probabilities, st.integers(1, 4))
def test_top_p(case: Case, p: float, least: int) -> None:
    ours = filters.TopPLogitsWarper(p, min_tokens_to_keep=least)
    assert_agrees(ours, reference.TopPLogitsWarper(p, min_tokens_to_keep=least), case)


@settings(max_examples=60, deadline=None)
@given(cases(), st.floats(0.0, 0.99), st.integers(1, 4))
def test_min_p(case: Case, p: float, least: int) -> None:
    ours = filters.MinPLogitsWarper(p, min_tokens_to_keep=least)
    assert_agrees(ours, reference.MinPLogitsWarper(p, min_tokens_to_keep=least), case)


@for_each("k", [1, 2, 3, 64, 65, 128])
def test_top_k_keeps_ties(k: int) -> None:
    scores = torch.arange(2048).div(4, rounding_mode="floor").float()[None]
    ours = filters.TopKLogitsWarper(k)(torch.zeros(1, 1), scores)
    assert_same(ours, reference.TopKLogitsWarper(k)(None, scores.clone()))


@for_each("p", [0.05, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0])
@for_each("size", [10, 2048])
def test_top_p_orders_ties_as_a_full_sort_does(p: float, size: int) -> None:
    level = torch.arange(size).remainder(5).float()[None]
    for scores in (torch.zeros(1, size), level, level * 8):
        ours = filters.TopPLogitsWarper(p)(torch.zeros(1, 1), scores)
        assert_same(ours, reference.TopPLogitsWarper(p)(None, scores.clone()))


def test_top_p_after_top_k_stays_in_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = filters.keep_top_k(torch.randn(2, 5000), 50)
    expected = filters.keep_top_p(scores.double(), 0.9).float()

    def sort(*_: object, **__: object) -> None:
        raise AssertionError("sorted the whole vocabulary")

    monkeypatch.setattr(torch.Tensor, "sort", sort)
    assert_same(filters.keep_top_p(scores, 0.9), expected)


def test_a_parameter_per_row_is_that_row_alone() -> None:
    scores = torch.randn(4, 1300) * 4
    column = torch.tensor([[0.2], [0.9], [0.999], [0.5]])
    listed = column.flatten().tolist()
    for function in (filters.keep_top_p, filters.keep_min_p, filters.scale_by_temperature):
        assert_same(function(scores, column), by_row(function, scores, listed))
    ks = torch.tensor([[1], [50], [1300], [4000]])
    expected = by_row(filters.keep_top_k, scores, ks.flatten().tolist())
    assert_same(filters.keep_top_k(scores, ks), expected)


def test_neutral_parameters_change_nothing() -> None:
    scores = torch.randn(3, 1300)
    one, zero = torch.ones(3, 1), torch.zeros(3, 1)
    for kept in (
        filters.scale_by_temperature(scores, one),
        filters.keep_top_k(scores, torch.full((3, 1), 1300)),
        filters.keep_top_p(scores, one),
        filters.keep_min_p(scores, zero),
        filters.keep_min_p(scores, 0.0),
    ):
        assert torch.equal(kept, scores)


@settings(max_examples=40, deadline=None)
@given(cases(), probabilities)
def test_something_is_always_left(case: Case, p: float) -> None:
    _, scores = case
    for kept in (
        filters.keep_top_k(scores, 1),
        filters.keep_top_p(scores, p / 100),
        filters.keep_min_p(scores, 1.0),
    ):
        assert kept.isfinite().any(-1).all()


def test_another_filter_value() -> None:
    scores = torch.randn(2, 40)
    for ours, theirs in (
        (filters.TopKLogitsWarper(3, -5.0), reference.TopKLogitsWarper(3, -5.0)),
        (filters.TopPLogitsWarper(0.3, -5.0), reference.TopPLogitsWarper(0.3, -5.0)),
        (filters.MinPLogitsWarper(0.3, -5.0), reference.MinPLogitsWarper(0.3, -5.0)),
    ):
        assert_agrees(ours, theirs, (torch.zeros(2, 1), scores))


@for_each("temperature", [0, 0.0, -1.0, 2, "a", None, True, float("nan")])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(InvalidRequestError, match="temperature.*float above 0"):
        filters.TemperatureLogitsWarper(temperature)


def test_bad_parameters_name_themselves() -> None:
    for name, make in (
        ("top_k", lambda: filters.TopKLogitsWarper(0)),
        ("top_k", lambda: filters.TopKLogitsWarper(1.5)),  # type: ignore[arg-type]
        ("top_p", lambda: filters.TopPLogitsWarper(1.1)),
        ("top_p", lambda: filters.TopPLogitsWarper(-0.1)),
        ("min_p", lambda: filters.MinPLogitsWarper(1.1)),
        ("min_tokens_to_keep", lambda: filters.TopPLogitsWarper(0.5, min_tokens_to_keep=0)),
        ("min_tokens_to_keep", lambda: filters.MinPLogitsWarper(0.5, min_tokens_to_keep=0)),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            make()
        assert caught.value.parameter == name
