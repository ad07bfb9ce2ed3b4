"""Tournament sampling, score by score, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.watermarking.synthid import SynthIDTextWatermarkLogitsProcessor
from tests.generation.logits.against import assert_same


def both(**values: Any) -> tuple[SynthIDTextWatermarkLogitsProcessor, Any]:
    arguments: dict[str, Any] = {
        "ngram_len": 4,
        "keys": [3, 17, 2**40, 5],
        "sampling_table_size": 2**10,
        "sampling_table_seed": 0,
        "context_history_size": 16,
        "device": "cpu",
        **values,
    }
    theirs = transformers.SynthIDTextWatermarkLogitsProcessor(**arguments)
    return SynthIDTextWatermarkLogitsProcessor(**arguments), theirs


settings_of = st.fixed_dictionaries(
    {
        "ngram_len": st.integers(2, 6),
        "keys": st.lists(st.integers(0, 2**62), min_size=1, max_size=8),
        "sampling_table_size": st.sampled_from([7, 1024, 65536]),
        "sampling_table_seed": st.integers(0, 99),
        "context_history_size": st.sampled_from([1, 4, 64]),
        "skip_first_ngram_calls": st.booleans(),
        "debug_mode": st.booleans(),
    }
)


@settings(max_examples=40, deadline=None)
@given(settings_of, st.integers(0, 2**31), st.integers(1, 3))
def test_scores_of_a_growing_sequence(values: dict[str, Any], seed: int, batch: int) -> None:
    ours, theirs = both(**values)
    torch.manual_seed(seed)
    ids = torch.randint(0, 3, (batch, 16))  # contexts recur
    for length in range(2, 16):
        scores = torch.randn(batch, 30) * 3
        scores[:, 5] = -torch.inf
        kept = scores.clone()
        actual = ours(ids[:, :length], scores)
        assert torch.equal(scores, kept)
        assert_same(actual, theirs(ids[:, :length], scores.clone()), atol=0)


@settings(max_examples=40, deadline=None)
@given(settings_of, st.integers(0, 2**31), st.integers(1, 3))
def test_detector_values_equal_the_reference(values: dict[str, Any], seed: int, batch: int) -> None:
    ours, theirs = both(**values)
    torch.manual_seed(seed)
    ids = torch.randint(0, 3, (batch, 20))
    for name in ("compute_g_values", "compute_context_repetition_mask"):
        assert torch.equal(getattr(ours, name)(ids), getattr(theirs, name)(ids)), name
    actual = ours.compute_eos_token_mask(ids, 1)
    assert torch.equal(actual, theirs.compute_eos_token_mask(ids, 1))
    ngrams = ids.unfold(1, ours.ngram_len, 1)
    keys = ours.compute_ngram_keys(ngrams)
    assert torch.equal(keys, theirs.compute_ngram_keys(ngrams))
    assert torch.equal(ours.sample_g_values(keys), theirs.sample_g_values(keys))
    state = torch.randint(-(2**62), 2**62, (batch,))
    assert torch.equal(ours.accumulate_hash(state, ids), theirs.accumulate_hash(state, ids))


def test_expected_mean() -> None:
    ours, theirs = both()
    for size, probability in ((2, 0.5), (50, 0.5), (50, 0.3)):
        assert ours.expected_mean_g_value(size, probability) == pytest.approx(
            theirs.expected_mean_g_value(size, probability)
        )


def test_a_tournament_keeps_the_distribution_on_average() -> None:
    # Over many keys the winner is distributed as the model says: the watermark is not seen.
    torch.manual_seed(0)
    scores = torch.randn(1, 6)
    total = torch.zeros(1, 6)
    for key in range(400):
        ours, _ = both(keys=[key, key + 10**6], sampling_table_seed=key)
        total += ours(torch.zeros(1, 1, dtype=torch.int64), scores).softmax(-1)
    assert torch.allclose(total / 400, scores.softmax(-1), atol=0.04)


def test_bad_arguments() -> None:
    ours, _ = both()
    with pytest.raises(InvalidRequestError, match="input_ids"):
        ours(torch.tensor([1, 2]), torch.zeros(1, 5))
    with pytest.raises(InvalidRequestError, match="input_ids"):
        ours.compute_g_values(torch.tensor([1, 2]))
    with pytest.raises(InvalidRequestError, match="ngrams"):
        ours.compute_ngram_keys(torch.ones(1, 2, 3, dtype=torch.int64))
    wrong: list[dict[str, Any]] = [{"keys": []}, {"ngram_len": 0}, {"sampling_table_size": 2**24}]
    for values in wrong:
        with pytest.raises(InvalidRequestError, match=next(iter(values))):
            both(**values)


@settings(max_examples=40, deadline=None)
@given(settings_of, st.integers(0, 2**31), st.integers(1, 60))
def test_remembers_given_tokens_as_if_seen(values: dict[str, Any], seed: int, count: int) -> None:
    (grown, _), (late, _) = both(**values), both(**values)
    torch.manual_seed(seed)
    ids, scores = torch.randint(0, 3, (2, 5 + count)), torch.randn(2, 30)
    late.prompt_length = 5
    for length in range(5, 5 + count + 1):
        expected = grown(ids[:, :length], scores)
    assert_same(late(ids, scores), expected, atol=0)


def test_only_what_is_remembered_is_hashed() -> None:
    processor, _ = both()
    processor.prompt_length = 2
    calls = 0
    hashed = processor._hash

    def counted(data: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return hashed(data)

    processor._hash = counted  # type: ignore[method-assign]
    processor(torch.randint(0, 3, (1, 3000)), torch.randn(1, 30))
    assert calls < 30
