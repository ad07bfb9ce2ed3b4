"""Typical, epsilon, eta and top-h sampling, against transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits import entropy_filters
from tests.generation.logits.against import Case, assert_agrees, assert_same, by_row, cases

probabilities = st.floats(0.01, 0.99)


@settings(max_examples=80, deadline=None)
@given(cases((7, 60, 1500, 20000)), probabilities, st.integers(1, 4))
def test_typical(case: Case, mass: float, least: int) -> None:
    ours = entropy_filters.TypicalLogitsWarper(mass, min_tokens_to_keep=least)
    theirs = reference.TypicalLogitsWarper(mass, min_tokens_to_keep=least)
    ids, scores = case
    actual, expected = ours(ids, scores), theirs(ids, scores.clone())
    # Thousands of float32 probabilities are added up to meet the mass; where they meet it to the
    # last bits, who is the last one kept is a matter of the order in which they are added.
    unsure = _at_the_edge(scores, mass)
    assert_same(actual.masked_fill(unsure, 0.0), expected.masked_fill(unsure, 0.0))
    assert_agrees(ours, lambda *_: actual, case)


def _at_the_edge(scores: Tensor, mass: float) -> Tensor:
    """Tokens at which the sum of the more typical ones meets the mass, in float64."""
    logs = scores.double().log_softmax(dim=-1)
    entropy = -(logs * logs.exp()).nansum(dim=-1, keepdim=True)
    shift = (-logs - entropy).abs()
    ranked, order = shift.sort(dim=-1)
    likely = logs.exp().gather(-1, order)
    before = likely.cumsum(dim=-1) - likely
    # Rounding of a float32 sum of V terms; and of the entropy, also such a sum, of numbers around
    # 10: its error moves tokens below it and above it past each other.
    near = (before - mass).abs() < 3e-7 * scores.shape[1] ** 0.5
    last = (before < mass).sum(dim=-1, keepdim=True) - 1
    near |= (ranked - ranked.gather(-1, last)).abs() < 2e-5
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, near & (likely > 0))


@settings(max_examples=40, deadline=None)
@given(cases(), probabilities, st.integers(1, 4))
def test_epsilon(case: Case, epsilon: float, least: int) -> None:
    ours = entropy_filters.EpsilonLogitsWarper(epsilon, min_tokens_to_keep=least)
    assert_agrees(ours, reference.EpsilonLogitsWarper(epsilon, min_tokens_to_keep=least), case)


@settings(max_examples=40, deadline=None)
@given(cases(), probabilities, st.integers(1, 4))
def test_eta(case: Case, epsilon: float, least: int) -> None:
    ours = entropy_filters.EtaLogitsWarper(epsilon, min_tokens_to_keep=least)
    assert_agrees(ours, reference.EtaLogitsWarper(epsilon, min_tokens_to_keep=least), case)


@settings(max_examples=60, deadline=None)
@given(cases(), probabilities)
def test_top_h(case: Case, share: float) -> None:
    ours, theirs = entropy_filters.TopHLogitsWarper(share), reference.TopHLogitsWarper(share)
    ids, scores = case
    actual, expected = ours(ids, scores), theirs(ids, scores.clone())
    unsure = _near_the_share(scores, share)
    assert_same(actual.masked_fill(unsure, 0.0), expected.masked_fill(unsure, 0.0))
    assert_agrees(ours, lambda *_: actual, case)


def _near_the_share(scores: Tensor, share: float, width: float = 3e-6) -> Tensor:
    """Tokens whose share of the entropy ends where the wanted one does, in float64."""
    logs = scores.double().log_softmax(dim=-1)
    order = logs.argsort(dim=-1, descending=True)
    parts = (-(logs * logs.exp())).nan_to_num().gather(-1, order)
    wanted = share * parts.sum(dim=-1, keepdim=True)
    after = parts.cumsum(dim=-1)
    near = ((after - wanted).abs() < width) | ((after - parts - wanted).abs() < width)
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, near)


def test_a_parameter_per_row_is_that_row_alone() -> None:
    scores = torch.randn(4, 1300) * 4
    column = torch.tensor([[0.01], [0.9], [0.3], [0.99]])
    for function in (
        entropy_filters.keep_typical,
        entropy_filters.keep_above_epsilon,
        entropy_filters.keep_above_eta,
        entropy_filters.keep_top_h,
    ):
        expected = by_row(function, scores, column.flatten().tolist())
        assert_same(function(scores, column), expected)


def test_neutral_parameters_change_nothing() -> None:
    scores = torch.randn(3, 1300)
    assert torch.equal(entropy_filters.keep_above_epsilon(scores, torch.zeros(3, 1)), scores)
    assert torch.equal(entropy_filters.keep_above_eta(scores, torch.zeros(3, 1)), scores)
    assert torch.equal(entropy_filters.keep_typical(scores, torch.full((3, 1), 1.1)), scores)


@settings(max_examples=40, deadline=None)
@given(cases(), probabilities)
def test_something_is_always_left(case: Case, value: float) -> None:
    _, scores = case
    for kept in (
        entropy_filters.keep_typical(scores, value / 100),
        entropy_filters.keep_above_epsilon(scores, value),
        entropy_filters.keep_above_eta(scores, value),
        entropy_filters.keep_top_h(scores, value / 100),
    ):
        assert kept.isfinite().any(-1).all()


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1.5])
def test_bad_parameters_name_themselves(value: float) -> None:
    for name, make in (
        ("typical_p", entropy_filters.TypicalLogitsWarper),
        ("epsilon_cutoff", entropy_filters.EpsilonLogitsWarper),
        ("eta_cutoff", entropy_filters.EtaLogitsWarper),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            make(value)
        assert caught.value.parameter == name
        with pytest.raises(InvalidRequestError, match="min_tokens_to_keep"):
            make(0.5, min_tokens_to_keep=0)


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0])
def test_bad_share(share: float) -> None:
    with pytest.raises(InvalidRequestError, match="top_h"):
        entropy_filters.TopHLogitsWarper(share)
