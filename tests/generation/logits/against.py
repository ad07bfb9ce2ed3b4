"""Share random scores and the comparison with transformers among tests of processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

Processor = Callable[[Tensor, Tensor], Tensor]

Case = tuple[Tensor, Tensor]


@st.composite
def cases(draw: st.DrawFn, sizes: tuple[int, ...] = (7, 60, 1500)) -> Case:
    """Draw token ids [B, T] and scores [B, V] without ties, some of them already banned."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch, length = draw(st.integers(1, 4)), draw(st.integers(1, 14))
    size = draw(st.sampled_from(sizes))
    spread = draw(st.sampled_from([0.1, 1.0, 4.0, 12.0]))
    scores = torch.randn(batch, size, generator=generator) * spread
    if draw(st.booleans()):
        banned = torch.rand(batch, size, generator=generator) < 0.7
        banned[:, 2] = False
        scores[banned] = -torch.inf
    ids = torch.randint(0, min(size, 6), (batch, length), generator=generator)
    return ids, scores


def assert_same(actual: Tensor, expected: Tensor, atol: float = 1e-6) -> None:
    """The same scores are -inf, and the others agree."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.isneginf(), expected.isneginf())
    assert torch.allclose(actual, expected, atol=atol, rtol=1e-6, equal_nan=True)


def assert_agrees(ours: Processor, theirs: Any, case: Case) -> None:
    """Both give the same scores, and ours leaves its arguments alone."""
    ids, scores = case
    kept_ids, kept_scores = ids.clone(), scores.clone()
    actual = ours(ids, scores)
    assert torch.equal(ids, kept_ids)
    assert torch.equal(scores, kept_scores)
    assert_same(actual, theirs(ids, scores.clone()))


def by_row(function: Callable[..., Tensor], scores: Tensor, values: list[Any]) -> Tensor:
    """Call a pure function for each row with that row's parameter."""
    rows = [function(scores[row : row + 1], value) for row, value in enumerate(values)]
    return torch.cat(rows)
