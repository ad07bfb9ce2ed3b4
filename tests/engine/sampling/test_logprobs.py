"""Log-probabilities are those of the logits they are given."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
from typing import Any

import pytest
import torch

from asyncgen.engine.sampling.logprobs import decoder_of, raw_logprobs
from asyncgen.types import TokenLogprob, TopLogprob
from tests.doubles.models import byte_tokenizer


def token_logprob(logits: torch.Tensor, token_id: int, top: int, tokenizer: Any) -> TokenLogprob:
    """Describe one position."""
    return raw_logprobs(logits[None], [token_id], [top])[0].named(decoder_of(tokenizer))


def test_the_chosen_token_and_the_best_ones() -> None:
    logits = torch.randn(260, generator=torch.Generator().manual_seed(0))
    entry = token_logprob(logits, 65, 5, byte_tokenizer())
    expected = torch.log_softmax(logits, dim=-1)
    assert (entry.token_id, entry.token) == (65, "A")
    assert entry.logprob == pytest.approx(float(expected[65]))
    values, ids = expected.sort(descending=True)
    assert [top.token_id for top in entry.top] == ids[:5].tolist()
    assert [top.logprob for top in entry.top] == pytest.approx(values[:5].tolist())
    assert sum(torch.tensor([top.logprob for top in entry.top]).exp().tolist()) < 1


def test_alternatives_are_no_objects_until_they_are_read() -> None:
    entry = token_logprob(torch.randn(260), 65, 20, byte_tokenizer())
    gc.collect()
    kept = [one for one in gc.get_referents(entry) if not isinstance(one, type)]
    assert not any(map(gc.is_tracked, kept))
    assert len(entry.top) == 20 and isinstance(entry.top[0], TopLogprob)
    assert not any(map(gc.is_tracked, kept))


def test_an_entry_with_alternatives_is_like_one_that_was_given_them() -> None:
    entry = token_logprob(torch.randn(260), 65, 3, byte_tokenizer())
    same = TokenLogprob(entry.token_id, entry.token, entry.logprob, entry.top)
    assert entry == same and hash(entry) == hash(same) and repr(entry) == repr(same)
    assert dataclasses.asdict(entry) == dataclasses.asdict(same)
    for other in (copy.deepcopy(entry), copy.copy(entry), pickle.loads(pickle.dumps(entry))):
        assert other == entry
    assert dataclasses.replace(entry, token="b").top == entry.top
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.top = ()  # type: ignore[misc]


def test_none_asked_for() -> None:
    assert token_logprob(torch.zeros(260), 65, 0, byte_tokenizer()).top == ()


def test_more_than_there_are() -> None:
    entry = token_logprob(torch.zeros(8), 3, 50, byte_tokenizer())
    assert len(entry.top) == 8
    assert entry.logprob == pytest.approx(-2.0794415)


def test_without_a_tokenizer_there_is_no_text() -> None:
    entry = token_logprob(torch.zeros(8), 3, 2, None)
    assert entry.token == "" and [top.token for top in entry.top] == ["", ""]
