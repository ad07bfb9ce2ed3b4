"""The shortlist gives the token of the whole vocabulary, or leaves the row to it."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.sampling.random_draws import HashDraws
from asyncgen.engine.sampling.shortlist import RowPlan, Shortlist, has_shortlist, shortlist_columns
from asyncgen.generation.logits.entropy_filters import EpsilonLogitsWarper
from asyncgen.generation.logits.filters import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from tests.cases import for_each

SIZE = 1500
HOT, TEN, MOST, LIKELY = (
    TemperatureLogitsWarper(0.7),
    TopKLogitsWarper(10),
    TopPLogitsWarper(0.9),
    MinPLogitsWarper(0.1),
)


@for_each(
    ("filters", "listable"),
    [
        ([HOT, TEN, MOST, LIKELY], True),
        ([TEN], True),
        ([MOST], True),
        ([HOT, LIKELY], True),
        ([], False),
        ([HOT], False),
        ([TEN, HOT], False),
        ([TEN, TopKLogitsWarper(5)], False),
        ([TEN, EpsilonLogitsWarper(0.1)], False),
        ([TopKLogitsWarper(63)], True),
        ([TopKLogitsWarper(64)], False),
        ([TopKLogitsWarper(5, filter_value=-1e9)], False),
        ([TopPLogitsWarper(0.9, min_tokens_to_keep=2)], False),
    ],
)
def test_shortlist_needs_filters_that_bound_the_candidates(
    filters: list[Any], listable: bool
) -> None:
    assert (shortlist_columns(filters) is not None) is listable


def test_small_vocabularies_and_devices_have_no_shortlist() -> None:
    assert has_shortlist(SIZE, torch.device("cpu"))
    assert not has_shortlist(100, torch.device("cpu"))
    assert not has_shortlist(SIZE, torch.device("cuda"))


def plans_of(filters: list[Any]) -> list[RowPlan]:
    """Plans of rows with these filters."""
    return [RowPlan([], "listed", own, shortlist_columns(own) or {}) for own in filters]


FILTERS = st.tuples(
    st.sampled_from([(), (HOT,), (TemperatureLogitsWarper(1.7),)]),
    st.sampled_from([(), (TEN,), (TopKLogitsWarper(1),), (TopKLogitsWarper(63),)]),
    st.sampled_from([(), (MOST,), (TopPLogitsWarper(0.999),), (TopPLogitsWarper(0.2),)]),
    st.sampled_from([(), (LIKELY,), (MinPLogitsWarper(0.0),)]),
).map(lambda parts: [each for part in parts for each in part])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        FILTERS.filter(lambda own: shortlist_columns(own) is not None), min_size=1, max_size=6
    ),
    st.integers(0, 999),
    st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    st.booleans(),
)
def test_draws_are_those_of_the_filters(filters: Any, seed: int, scale: float, ties: bool) -> None:
    rows = len(filters)
    scores = torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed)) * scale
    scores = scores.round() if ties else scores
    keys = torch.arange(rows) + seed
    draw_all = HashDraws(SIZE, torch.device("cpu"))
    tokens, best = Shortlist(plans_of(filters)).draw(scores, keys, draw_all)
    for row, own in enumerate(filters):
        filtered = scores[row : row + 1]
        for each in own:
            filtered = each(torch.zeros(1, 1, dtype=torch.int64), filtered)
        token, height = draw_all(filtered, keys[row : row + 1])
        assert (int(tokens[row]), float(best[row])) == (int(token), float(height))


def test_usual_rows_never_see_the_whole_vocabulary() -> None:
    def never(scores: torch.Tensor, keys: torch.Tensor) -> Any:
        raise AssertionError(scores.shape)

    filters: list[list[Any]] = [[HOT, TEN, MOST, LIKELY], [TEN], [MOST], [LIKELY]]
    scores = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0)) * 8
    tokens, _ = Shortlist(plans_of(filters)).draw(scores, torch.arange(4), never)
    assert tokens.shape == (4,)
