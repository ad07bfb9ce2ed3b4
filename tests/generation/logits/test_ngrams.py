"""No n-gram twice: against transformers, and at a constant cost per token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits.build import build_logits_processors
from asyncgen.generation.logits.ngrams import (
    EncoderNoRepeatNGramLogitsProcessor,
    NGramIndex,
    NoRepeatNGramLogitsProcessor,
    ban_tokens,
)
from tests.cases import for_each
from tests.generation.logits.against import Case, assert_agrees, assert_same, cases

tokens = st.lists(st.integers(0, 3), max_size=30)


@settings(max_examples=60, deadline=None)
@given(cases((7, 60)), st.integers(1, 5))
def test_one_call(case: Case, size: int) -> None:
    theirs = reference.NoRepeatNGramLogitsProcessor(size)
    assert_agrees(NoRepeatNGramLogitsProcessor(size), theirs, case)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_a_growing_sequence(data: st.DataObject, size: int) -> None:
    ours, theirs = NoRepeatNGramLogitsProcessor(size), reference.NoRepeatNGramLogitsProcessor(size)
    batch = data.draw(st.integers(1, 3))
    scores = torch.randn(batch, 5)
    buffer = torch.randint(0, 3, (batch, 20))
    length = data.draw(st.integers(1, 4))
    while length < 20:
        view = buffer[:, :length]
        assert_same(ours(view, scores), theirs(view, scores.clone()))
        # Mostly one token more; now and then another order of rows, or a shorter sequence.
        action = data.draw(st.sampled_from(["grow", "grow", "grow", "shuffle", "shrink", "jump"]))
        if action == "shuffle":
            buffer = buffer[torch.randperm(batch)]
        elif action == "shrink":
            length = max(1, length - 3)
        length += 3 if action == "jump" else 1


@settings(max_examples=60, deadline=None)
@given(cases((7, 60)), st.integers(1, 4), st.integers(1, 3))
def test_ngrams_of_the_encoder(case: Case, size: int, beams: int) -> None:
    ids, scores = case[0].repeat_interleave(beams, 0), case[1].repeat_interleave(beams, 0)
    prompt = torch.randint(0, 6, (case[0].shape[0], 11))
    theirs = reference.EncoderNoRepeatNGramLogitsProcessor(size, prompt)
    assert_agrees(EncoderNoRepeatNGramLogitsProcessor(size, prompt), theirs, (ids, scores))
    theirs = reference.EncoderNoRepeatNGramLogitsProcessor(size, prompt[0])
    one = (ids[:1], scores[:1])
    assert_agrees(EncoderNoRepeatNGramLogitsProcessor(size, prompt[0]), theirs, one)


@settings(max_examples=60, deadline=None)
@given(tokens, st.integers(1, 4))
def test_index_bans_the_same_tokens_as_a_search(sequence: list[int], size: int) -> None:
    index = NGramIndex(size, sequence)
    context = tuple(sequence[len(sequence) - size + 1 :])
    found = {
        sequence[start + size - 1]
        for start in range(len(sequence) - size + 1)
        if tuple(sequence[start : start + size - 1]) == context
    }
    assert set(index.banned()) == (found if len(sequence) >= size - 1 else set())


def test_a_growing_sequence_is_not_indexed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    appended = []
    append = NGramIndex.append

    def count(self: NGramIndex, token: int) -> None:
        appended.append(token)
        append(self, token)

    monkeypatch.setattr(NGramIndex, "append", count)
    processor = NoRepeatNGramLogitsProcessor(3)
    ids, scores = torch.randint(0, 50, (2, 300)), torch.zeros(2, 50)
    for length in range(100, 300):
        processor(ids[:, :length], scores)
    assert len(appended) == 2 * 299


class _Touched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the elements of integer tensors that operations read or write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        views = ("slice", "select", "view", "unsqueeze", "detach", "alias", "as_strided")
        if not any(name in str(function) for name in views):
            for each in (*args, result):
                if isinstance(each, torch.Tensor) and not each.is_floating_point():
                    self.elements += each.numel()
        return result


@for_each("field", ["no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "repetition_penalty"])
@for_each("drafts", [False, True])
def test_a_token_of_a_request_costs_the_same_however_long_it_is(field: str, drafts: bool) -> None:
    (processor,) = build_logits_processors(
        GenerationConfig(**{field: 1.2 if field == "repetition_penalty" else 3}),
        prompt_length=100,
        eos_token_ids=None,
        device="cpu",
        encoder_input_ids=torch.randint(0, 50, (1, 100)),
        tail_only=True,
    )
    ids, scores = torch.randint(0, 50, (1, 2200)), torch.zeros(1, 50)
    most = []
    for start in (100, 2000):
        costs = []
        processor(ids[:, : start - 2], scores)
        processor(ids[:, : start - 1], scores)  # memory for what comes is made here
        for length in range(start, start + 40):
            # A draft of three is looked at, and the second of them is wrong.
            for more in (0, 1, 2) if drafts else (0,):
                with _Touched() as touched:
                    processor(ids[:, : length + more], scores)
                costs.append(touched.elements)
            if drafts:
                ids[0, length : length + 3] = torch.randint(0, 50, (3,))
        most.append(max(costs))
    # More n-grams may have more followers, which are banned one by one; no more than that.
    assert most[1] <= most[0] + 30, most


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_drafts_that_are_taken_back_leave_no_trace(data: st.DataObject, size: int) -> None:
    ours = NoRepeatNGramLogitsProcessor(size, tail_only=True)
    ids, scores = torch.randint(0, 3, (1, 6)), torch.randn(1, 5)
    for _ in range(6):
        draft = torch.cat((ids, torch.randint(0, 3, (1, 3))), dim=1)
        for length in range(ids.shape[1], draft.shape[1] + 1):
            fresh = NoRepeatNGramLogitsProcessor(size)
            assert_same(ours(draft[:, :length], scores), fresh(draft[:, :length], scores))
        stands = data.draw(st.integers(0, 3))
        ids = draft[:, : ids.shape[1] + stands]
        ids = torch.cat((ids, torch.randint(0, 3, (1, 1))), dim=1)


def test_no_ban_costs_no_copy() -> None:
    scores = torch.randn(2, 5)
    assert ban_tokens(scores, [[], []]) is scores


@pytest.mark.parametrize("size", [0, -1, 1.5, "a"])
def test_bad_size(size: int) -> None:
    with pytest.raises(InvalidRequestError, match="ngram_size"):
        NoRepeatNGramLogitsProcessor(size)
    with pytest.raises(InvalidRequestError, match="encoder_ngram_size"):
        EncoderNoRepeatNGramLogitsProcessor(size, torch.ones(1, 1, dtype=torch.int64))
