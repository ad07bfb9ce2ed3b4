"""Prompt lookup: an index that proposes what followed the same tokens before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.strategies.drafters.lookup import LookupDrafter
from tests.cases import for_each

if TYPE_CHECKING:
    from asyncgen.generation.strategies.step import Drafter, Proposal


def propose(drafter: Drafter, ids: list[int], room: int = 100) -> list[int]:
    drafting = drafter.propose(torch.tensor([ids]), room)
    try:
        next(drafting)
    except StopIteration as end:
        proposal: Proposal = end.value
        assert proposal.scores is None
        found: list[int] = proposal.token_ids.tolist()
        return found
    raise AssertionError("a look-up takes one piece")


def by_hand(ids: list[int], count: int, size: int, ends: set[int]) -> list[int]:
    """Search as the documentation says."""
    for length in range(min(size, len(ids) - 1), 0, -1):
        for place in range(len(ids) - length):
            if ids[place : place + length] == ids[-length:]:
                found = ids[place + length : place + length + count]
                cut = next((i for i, token in enumerate(found) if token in ends), len(found))
                return found[:cut]
    return []


def test_follows_the_longest_then_the_first_match() -> None:
    assert propose(LookupDrafter(3), [5, 6, 7, 8, 9, 6, 1, 5, 6]) == [7, 8, 9]
    assert propose(LookupDrafter(2, 1), [5, 6, 7, 8, 9, 6, 1, 8, 6]) == [7, 8]
    assert propose(LookupDrafter(2), [5, 6, 7]) == []


def test_ends_before_an_end_token_and_where_there_is_no_room() -> None:
    assert propose(LookupDrafter(4, 2, [7]), [5, 6, 8, 7, 9, 5, 6]) == [8]
    assert propose(LookupDrafter(4), [5, 6, 8, 7, 9, 5, 6], room=2) == [8, 7]


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 12),
)
def test_growing_index_finds_the_same_as_a_search(
    pieces: list[list[int]], count: int, size: int
) -> None:
    drafter = LookupDrafter(count, size, [4])
    ids: list[int] = []
    for piece in pieces:
        ids += piece
        assert propose(drafter, ids) == by_hand(ids, count, size, {4})


@for_each(
    ("count", "size", "name"),
    [(0, 2, "prompt_lookup_num_tokens"), (3, 0, "max_matching_ngram_size")],
)
def test_lookup_drafter_refuses_wrong_sizes(count: int, size: int, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        LookupDrafter(count, size)


def test_a_size_without_bound_costs_no_more() -> None:
    ids = [1, 2, 3] * 2000
    drafter = LookupDrafter(3, 10**15)
    assert propose(drafter, ids) == [1, 2, 3]
    assert len(drafter._index.end) <= 2 * len(ids)
