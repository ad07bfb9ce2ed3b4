"""Test that changes of sequences are detected, or trusted, and that kept values follow them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.generation.logits.bans import SequenceBiasLogitsProcessor
from asyncgen.generation.logits.ngrams import NGramIndex
from asyncgen.generation.logits.sequence_memory import Memories, RowTracker, SeenTokens

TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=40)


def test_row_tracker_reports_only_changes() -> None:
    ids = torch.arange(24).view(2, 12)
    growth = RowTracker()
    assert growth.follow(ids[:, :2]) is None
    for length, kept in ((3, 2), (3, 3), (7, 3), (5, 5)):
        assert growth.follow(ids[:, :length]) == kept
    assert growth.follow(ids.flip(0)[:, :5]) == 0
    assert growth.follow(ids[:1, :6]) is None


def test_a_buffer_that_is_written_to_is_noticed() -> None:
    ids = torch.arange(6).view(1, 6)
    growth = RowTracker()
    growth.follow(ids[:, :3])
    ids[0, 1] = 9
    assert growth.follow(ids[:, :4]) == 1


def test_trust_looks_at_the_tail_alone() -> None:
    ids = torch.arange(12).view(2, 6)
    growth = RowTracker(tail_only=True)
    growth.follow(ids[:, :2])
    assert growth.follow(ids.flip(0)[:, :3]) == 2
    assert growth.follow(ids[:, :3]) == 2
    assert growth.follow(ids[:, :6]) == 3
    assert growth.follow(ids[:, :4]) == 3


def counted(seen: SeenTokens) -> dict[int, float]:
    """Tokens and how often each occurs."""
    return dict(zip(seen.token_ids, seen.counts, strict=True))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tail_only=st.booleans(), by_row=st.booleans())
def test_memories_are_those_of_a_beginning_anew(
    data: st.DataObject, tail_only: bool, by_row: bool
) -> None:
    size, rows = 5, data.draw(st.integers(1, 3))
    start = (lambda row: row) if by_row else (lambda row: 2)
    memories = Memories(lambda row: SeenTokens(start(row)), tail_only=tail_only)
    grams = Memories(lambda _: NGramIndex(2), tail_only=tail_only)
    ids = torch.randint(size, (rows, 3))
    for _ in range(8):
        for row, (seen, index) in enumerate(zip(memories.of(ids), grams.of(ids), strict=True)):
            tokens = ids[row].tolist()
            assert len(seen) == len(index) == len(tokens)
            assert counted(seen) == Counter(tokens[start(row) :])
            assert set(index.banned()) == set(NGramIndex(2, tokens).banned())
        # A draft is taken back, and its first wrong token replaced; or the rows grow.
        cut = data.draw(st.integers(max(ids.shape[1] - 3, 2), ids.shape[1]))
        ids = torch.cat((ids[:, :cut], torch.randint(size, (rows, 1))), dim=1)


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 8), st.data())
def test_tokens_are_taken_in_and_back(tokens: list[int], start: int, data: st.DataObject) -> None:
    seen = SeenTokens(start, tokens)
    for length in range(len(tokens), data.draw(st.integers(0, len(tokens))), -1):
        assert counted(seen) == Counter(tokens[start:length])
        seen.pop()


def test_other_rows_begin_anew() -> None:
    memories = Memories(lambda _: SeenTokens())
    ids = torch.tensor([[1, 2, 2], [0, 0, 1]])
    memories.of(ids)
    assert [counted(seen) for seen in memories.of(ids[:1])] == [{1: 1, 2: 2}]
    assert not memories.fresh().of_list([])


@given(TOKENS, st.integers(0, 10))
def test_a_list_and_calls_may_take_turns(tokens: list[int], start: int) -> None:
    memories = Memories(lambda _: SeenTokens(start))
    for length in range(len(tokens) + 1):
        if length % 3 == 2:
            [seen] = memories.of(torch.tensor([tokens[:length]]))
        else:
            seen = memories.of_list(tokens[:length])
        assert counted(seen) == Counter(tokens[start:length])


def test_a_negative_token_is_an_error() -> None:
    with pytest.raises(IndexError, match="token -1"):
        SeenTokens(0, [1, -1])
    assert SeenTokens(1, [9, 5, 1]).largest == 5


class Watched(list[int]):
    """A list that counts what is read of it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_read = 0

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        self.num_read += len(found) if isinstance(where, slice) else 1
        return found

    def __iter__(self) -> Any:
        raise AssertionError("read from the beginning")


def test_a_step_reads_the_new_token_alone() -> None:
    tokens = Watched(range(3000))
    seen, repeated = Memories(lambda _: SeenTokens(10000)), Memories(lambda _: NGramIndex(3))
    biases = SequenceBiasLogitsProcessor({(1, 2): 1.0, (1, 2, 3): 1.0}).biases
    for step in range(50):
        seen.of_list(tokens)
        repeated.of_list(tokens).banned()
        biases.completions(tokens)
        if step == 0:
            tokens.num_read = 0
        tokens.append(3000 + step)
    assert tokens.num_read == 49 * (1 + 1 + 1 + 2)
