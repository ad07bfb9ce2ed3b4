"""Bans and biases of tokens and sequences, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits import bans
from tests.cases import for_each
from tests.generation.logits.against import Case, assert_agrees, assert_same, cases

words = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(cases(), st.lists(words, min_size=1, max_size=8), st.lists(st.integers(0, 5), max_size=2))
def test_bad_words(case: Case, bad: list[list[int]], eos: list[int]) -> None:
    ours = bans.NoBadWordsLogitsProcessor(bad, eos or None)
    assert_agrees(ours, reference.NoBadWordsLogitsProcessor(bad, eos or None), case)


@settings(max_examples=60, deadline=None)
@given(cases(), st.lists(st.tuples(words, st.floats(-5, 5)), min_size=1, max_size=8))
def test_sequence_bias(case: Case, table: list[tuple[list[int], float]]) -> None:
    listed: Any = [[tokens, bias] for tokens, bias in table]
    theirs = reference.SequenceBiasLogitsProcessor(listed)
    assert_agrees(bans.SequenceBiasLogitsProcessor(listed), theirs, case)
    keyed = {tuple(tokens): bias for tokens, bias in table}
    theirs = reference.SequenceBiasLogitsProcessor(keyed)
    assert_agrees(bans.SequenceBiasLogitsProcessor(keyed), theirs, case)


def test_sequence_bias_follows_a_changed_vocabulary() -> None:
    ours = bans.SequenceBiasLogitsProcessor([[[1], 2.0], [[2, 1], 1.0]])
    ids = torch.tensor([[2]])
    for size, dtype in ((4, torch.float32), (9, torch.float32), (9, torch.float64)):
        scores = ours(ids, torch.zeros(1, size, dtype=dtype))
        assert scores.dtype == dtype
        assert scores[0, 1] == 3.0


@settings(max_examples=40, deadline=None)
@given(cases(), st.lists(st.integers(0, 9), max_size=4), st.integers(1, 14))
def test_suppressed_tokens(case: Case, tokens: list[int], begin: int) -> None:
    listed = [*tokens, 10**9]
    ours = bans.SuppressTokensLogitsProcessor(listed)
    assert_agrees(ours, reference.SuppressTokensLogitsProcessor(listed), case)
    at_begin = bans.SuppressTokensAtBeginLogitsProcessor(listed, begin)
    assert_agrees(at_begin, reference.SuppressTokensAtBeginLogitsProcessor(listed, begin), case)


@settings(max_examples=20, deadline=None)
@given(cases())
def test_whole_scores(case: Case) -> None:
    ids, scores = case
    broken = scores.clone()
    broken[:, 0], broken[:, 1] = torch.nan, torch.inf
    expected = reference.InfNanRemoveLogitsProcessor()(ids, broken.clone())
    assert_same(bans.InfNanRemoveLogitsProcessor()(ids, broken), expected)
    assert_agrees(bans.LogitNormalization(), reference.LogitNormalization(), case)


@for_each(
    "table",
    [[], {}, None, "ab", [[1, 1.0]], [[[1], 1]], [[[-1], 1.0]], [[["a"], 1.0]], [[(1,), 1.0]]]
    + [{1: 1.0}, {(): 1.0}, {(-1,): 1.0}, {(1,): 1}, {(1,): "x"}, [[[], 1.0]], [[[1], 1.0, 2.0]]],
)
def test_bad_bias_tables(table: Any) -> None:
    with pytest.raises(InvalidRequestError, match="sequence_bias"):
        bans.SequenceBiasLogitsProcessor(table)


@for_each("bad", [[], {}, None, "ab", [1], [[-1]], [["a"]], [[1.5]], [(1, 2)], [[]], [[1], []]])
def test_bad_bad_words(bad: Any) -> None:
    with pytest.raises(InvalidRequestError, match="bad_words_ids"):
        bans.NoBadWordsLogitsProcessor(bad)


def test_words_outside_of_the_vocabulary() -> None:
    for tokens in ([7], [1, 7], [7, 1]):
        with pytest.raises(ValueError, match="vocabulary"):
            bans.NoBadWordsLogitsProcessor([tokens])(torch.zeros(1, 3).long(), torch.zeros(1, 5))


def test_token_ids_must_be_integers() -> None:
    assert bans.token_list(torch.tensor([[1, 2]])) == [1, 2]
    assert bans.token_list(3) == [3]
    with pytest.raises(TypeError, match="integers"):
        bans.token_list([1.5])  # type: ignore[list-item]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.dictionaries(
        st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
        st.sampled_from([1.5, -2.0]),
        min_size=1,
        max_size=8,
    ),
)
def test_biases_of_one_sequence(tokens: list[int], table: dict[tuple[int, ...], float]) -> None:
    biases = bans.SequenceBiasLogitsProcessor(table).biases
    wanted: dict[int, float] = {}
    for sequence, bias in table.items():
        before = tokens[len(tokens) - len(sequence) + 1 :]
        if 1 < len(sequence) <= len(tokens) + 1 and list(sequence[:-1]) == before:
            wanted[sequence[-1]] = wanted.get(sequence[-1], 0.0) + bias
    assert biases.completions(tokens) == wanted
    always = dict(zip(biases.tokens.tolist(), biases.always.tolist(), strict=True))
    assert always == {own[0]: bias for own, bias in table.items() if len(own) == 1}
    assert biases.largest == max(max(sequence) for sequence in table)


def test_pairs_are_those_that_were_given() -> None:
    bias = bans.SequenceBiasLogitsProcessor([[[10, 45], -2.0], [[64], -7.5]])
    assert bias.pairs == [((10, 45), -2.0), ((64,), -7.5)]
    banned = bans.NoBadWordsLogitsProcessor([[3], [4, 5]])
    assert banned.pairs == [((3,), -torch.inf), ((4, 5), -torch.inf)]
