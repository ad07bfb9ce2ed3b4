"""By way of blocks, the same is found as by looking at everything."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.sampling.random_draws import argmax, block_maxima, largest, members

SHAPES = st.tuples(st.integers(1, 4), st.integers(70, 5000))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64])
LARGE_SHAPES = st.tuples(st.integers(1, 4), st.integers(33_000, 33_300))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 99), st.sampled_from([0.0, 0.3, 5.0]), st.booleans())
def test_the_largest_scores(shape: tuple[int, int], seed: int, scale: float, ties: bool) -> None:
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    scores = scores.round() if ties else scores
    values, index = largest(scores, 64)
    assert torch.equal(values, scores.topk(64).values)
    assert torch.equal(scores.gather(1, index), values)
    assert all(len(set(row)) == 64 for row in index.tolist())


@settings(max_examples=60, deadline=None)
@given(SHAPES | LARGE_SHAPES, st.integers(0, 99), st.sampled_from([0.0, 1.0, 5.0]), DTYPES)
def test_the_first_of_the_highest(
    shape: tuple[int, int], seed: int, scale: float, dtype: torch.dtype
) -> None:
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    scores = whole.round().to(dtype)
    best, index = argmax(scores)
    highest = scores.amax(-1)
    assert torch.equal(best, highest.float())
    assert index.tolist() == [
        row.index(value) for row, value in zip(scores.tolist(), highest.tolist(), strict=True)
    ]


def test_of_rows_apart_each_is_looked_at_alone() -> None:
    scores = torch.tensor([[0.0, -0.0, 9.0, 9.0], [-torch.inf, -torch.inf, 9.0, 9.0]])
    best, index = argmax(scores[:, :2])  # both zeros are the same number
    assert (best.tolist(), index.tolist()) == ([0.0, -torch.inf], [0, 0])


def test_the_default_dtype_does_not_matter() -> None:
    scores = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    for dtype in (torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            best, index = argmax(scores.t().contiguous().t())
        finally:
            torch.set_default_dtype(torch.float32)
        assert best.dtype == torch.float32
        assert (best.tolist(), index.tolist()) == ([2.0, 3.0], [1, 0])


def test_nan_is_not_overlooked() -> None:
    for place in (0, 1500, 2999):
        scores = torch.zeros(2, 3000)
        scores[0, place] = torch.nan
        assert argmax(scores)[0].isnan().tolist() == [True, False]
        assert largest(scores, 5)[0][0].isnan().any()
    for place in (0, 20_000, 40_006):
        scores = torch.zeros(2, 40_007)
        scores[0, place] = torch.nan
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert argmax(scores.to(dtype))[0].isnan().tolist() == [True, False]


def test_members_are_all_of_a_block_and_the_rest() -> None:
    found = members(torch.tensor([[2, 0], [1, 1]]), 3, 11)
    assert found.tolist() == [[6, 7, 8, 0, 1, 2, 9, 10], [3, 4, 5, 3, 4, 5, 9, 10]]
    assert block_maxima(torch.arange(11.0)[None], 3).tolist() == [[2.0, 5.0, 8.0]]
