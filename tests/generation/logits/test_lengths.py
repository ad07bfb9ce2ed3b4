"""Processors of the end token and of given lengths, against transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits import lengths
from tests.generation.logits.against import Case, Processor, assert_agrees, assert_same, cases

ends = st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(0, 16), st.integers(0, 16), ends)
def test_shortest(case: Case, shortest: int, prompt: int, eos: list[int]) -> None:
    ids = [*eos, 10**9]
    theirs = reference.MinLengthLogitsProcessor(shortest, ids)
    assert_agrees(lengths.MinLengthLogitsProcessor(shortest, ids), theirs, case)
    theirs = reference.MinNewTokensLengthLogitsProcessor(prompt, shortest, ids)
    ours = lengths.MinNewTokensLengthLogitsProcessor(prompt, shortest, ids)
    assert_agrees(ours, theirs, case)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(2, 16), ends)
def test_forced(case: Case, longest: int, eos: list[int]) -> None:
    ours: Processor = lengths.ForcedBOSTokenLogitsProcessor(eos[0])
    assert_agrees(ours, reference.ForcedBOSTokenLogitsProcessor(eos[0]), case)
    ours = lengths.ForcedEOSTokenLogitsProcessor(longest, eos)
    assert_agrees(ours, reference.ForcedEOSTokenLogitsProcessor(longest, eos), case)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(0, 8), st.floats(0.5, 1.5), st.integers(0, 8), ends)
def test_decay(case: Case, start: int, factor: float, prompt: int, eos: list[int]) -> None:
    ours = lengths.ExponentialDecayLengthPenalty((start, factor), eos, prompt)
    theirs = reference.ExponentialDecayLengthPenalty((start, factor), eos, prompt)
    assert_agrees(ours, theirs, case)


def test_a_share_per_row_is_that_row_alone() -> None:
    scores, ends = torch.randn(3, 9), torch.tensor([2, 4])
    shares = torch.tensor([[0.0], [3.0], [-0.5]])
    rows = [
        lengths.raise_end_scores(scores[row : row + 1], ends, float(shares[row]))
        for row in range(3)
    ]
    assert_same(lengths.raise_end_scores(scores, ends, shares), torch.cat(rows))


@pytest.mark.parametrize(("length", "short"), [(3, True), (4, False), (9, False)])
def test_the_end_is_banned_below_a_length(length: int, short: bool) -> None:
    for processor in (
        lengths.MinLengthLogitsProcessor(4, [2, 4, 99]),
        lengths.MinNewTokensLengthLogitsProcessor(1, 3, [2, 4, 99]),
    ):
        assert list(processor.banned([0] * length, 9)) == ([2, 4] if short else [])
        scores = processor(torch.zeros(1, length, dtype=torch.int64), torch.zeros(1, 9))
        assert bool(scores.isneginf().any()) == short


def test_bad_parameters_name_themselves() -> None:
    for name, make in (
        ("min_length", lambda: lengths.MinLengthLogitsProcessor(-1, 2)),
        ("min_length", lambda: lengths.MinLengthLogitsProcessor(1.5, 2)),  # type: ignore[arg-type]
        ("prompt_length_to_skip", lambda: lengths.MinNewTokensLengthLogitsProcessor(-1, 2, 2)),
        ("min_new_tokens", lambda: lengths.MinNewTokensLengthLogitsProcessor(1, -2, 2)),
        ("eos_token_id", lambda: lengths.ForcedEOSTokenLogitsProcessor(5, -1)),
        ("eos_token_id", lambda: lengths.ExponentialDecayLengthPenalty((1, 1.1), -1, 3)),
        (
            "exponential_decay_length_penalty",
            lambda: lengths.ExponentialDecayLengthPenalty((1,), 1, 3),  # type: ignore[arg-type]
        ),
        (
            "exponential_decay_length_penalty",
            lambda: lengths.ExponentialDecayLengthPenalty((2**40, 1.1), 1, 3),
        ),
        (
            "exponential_decay_length_penalty",
            lambda: lengths.ExponentialDecayLengthPenalty((1, 10**400), 1, 3),
        ),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            make()
        assert caught.value.parameter == name
    with pytest.raises(TypeError, match="integers"):
        lengths.MinLengthLogitsProcessor(4, "a")  # type: ignore[arg-type]
