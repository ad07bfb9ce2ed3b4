"""What changed in sequences is found out, or taken on trust; counts follow it exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.generation.logits.growth import Growth, TokenCounts


def test_only_what_differs_is_reported() -> None:
    ids = torch.arange(24).view(2, 12)
    growth = Growth()
    first = growth.follow(ids[:, :2])
    assert (first.kept, first.removed) == (0, None)
    for length, kept in ((3, 2), (3, 3), (7, 3), (5, 5)):
        change = growth.follow(ids[:, :length])
        assert change.kept == kept
        assert torch.equal(change.added, ids[:, kept:length])
    assert change.removed is not None and torch.equal(change.removed, ids[:, 5:7])
    assert growth.follow(ids.flip(0)[:, :5]).kept == 0
    assert growth.follow(ids[:1, :6]).removed is None


def test_a_buffer_that_is_written_to_is_noticed() -> None:
    ids = torch.arange(6).view(1, 6)
    growth = Growth()
    growth.follow(ids[:, :3])
    ids[0, 1] = 9
    change = growth.follow(ids[:, :4])
    assert change.kept == 1
    assert change.removed is not None and change.removed.tolist() == [[1, 2]]
    assert change.added.tolist() == [[9, 2, 3]]


def test_trust_looks_at_the_tail_alone() -> None:
    ids = torch.arange(12).view(2, 6)
    growth = Growth(tail_only=True)
    growth.follow(ids[:, :2])
    assert growth.follow(ids.flip(0)[:, :3]).kept == 2
    assert growth.follow(ids[:, :3]).kept == 2
    assert growth.follow(ids[:, :6]).kept == 3
    change = growth.follow(ids[:, :4])
    assert change.kept == 3
    assert change.removed is not None and change.removed.tolist() == ids[:, 3:].tolist()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tail_only=st.booleans(), by_row=st.booleans())
def test_counts_are_those_of_a_count_anew(
    data: st.DataObject, tail_only: bool, by_row: bool
) -> None:
    size, rows = 5, data.draw(st.integers(1, 3))
    first = torch.arange(rows) if by_row else 2
    counts, ids = TokenCounts(tail_only=tail_only), torch.randint(size, (rows, 3))
    for _ in range(8):
        wanted = torch.zeros(rows, size)
        for row in range(rows):
            start = row if by_row else 2
            for token in ids[row, start:].tolist():
                wanted[row, token] += 1
        assert torch.equal(counts.update(ids, size, first), wanted)
        # A draft is taken back, and its first wrong token replaced; or the rows grow.
        cut = data.draw(st.integers(max(ids.shape[1] - 3, 2), ids.shape[1]))
        ids = torch.cat((ids[:, :cut], torch.randint(size, (rows, 1))), dim=1)


@pytest.mark.parametrize("change", ["rows", "vocabulary"])
def test_other_scores_are_counted_anew(change: str) -> None:
    counts = TokenCounts()
    ids = torch.tensor([[1, 2, 2], [0, 0, 1]])
    counts.update(ids, 4)
    if change == "rows":
        assert counts.update(ids[:1], 4).tolist() == [[0, 1, 2, 0]]
    else:
        assert counts.update(ids, 3).tolist() == [[0, 1, 2], [2, 1, 0]]
