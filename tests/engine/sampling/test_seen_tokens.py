"""What is kept of a sequence is right, and each token is read once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.engine.sampling.seen_tokens import BiasRounds, RepeatedNGrams, SeenTokens

TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=40)


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


@given(TOKENS, st.integers(0, 10))
def test_tokens_and_their_counts(tokens: list[int], start: int) -> None:
    seen = SeenTokens(start, 5)
    for length in range(len(tokens) + 1):
        seen.read(tokens[:length])
        found = dict(zip(seen.token_ids, seen.counts, strict=True))
        assert found == Counter(tokens[start:length])


def test_a_token_beyond_the_scores_is_an_error() -> None:
    with pytest.raises(IndexError, match="token 5"):
        SeenTokens(0, 5).read([1, 5])


@given(TOKENS, st.integers(1, 4))
def test_repeated_ngrams(tokens: list[int], size: int) -> None:
    repeated = RepeatedNGrams(size)
    for length in range(len(tokens) + 1):
        so_far = tokens[:length]
        known = {tuple(so_far[i : i + size]) for i in range(length - size + 1)}
        tail = tuple(so_far[length - size + 1 :]) if length >= size - 1 else None
        wanted = {gram[-1] for gram in known if gram[:-1] == tail}
        assert set(repeated.banned(so_far)) == wanted


@given(
    TOKENS,
    st.dictionaries(
        st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
        st.sampled_from([1.5, -2.0]),
        max_size=8,
    ),
)
def test_biases(tokens: list[int], table: dict[tuple[int, ...], float]) -> None:
    rounds = BiasRounds(table.items()).rounds(tokens)
    found = sorted(pair for each in rounds for pair in each)
    assert found == sorted(
        (sequence[-1], bias)
        for sequence, bias in table.items()
        if sequence[:-1] == tuple(tokens[len(tokens) - len(sequence) + 1 :])
        and len(tokens) >= len(sequence) - 1
    )
    assert all(len({token for token, _ in each}) == len(each) for each in rounds)


def test_a_step_reads_the_new_token_alone() -> None:
    tokens = Watched(range(3000))
    seen, repeated = SeenTokens(0, 10000), RepeatedNGrams(3)
    biases = BiasRounds([((1, 2), 1.0), ((1, 2, 3), 1.0)])
    for step in range(50):
        seen.read(tokens)
        repeated.banned(tokens)
        biases.rounds(tokens)
        if step == 0:
            tokens.num_read = 0
        tokens.append(3000 + step)
    assert tokens.num_read == 49 * (1 + 1 + 1 + 2)
