"""Beam search and beam sampling give the tokens, scores and indices that transformers gives."""

from __future__ import annotations

import functools
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases import for_each, some
from tests.parity.test_generate import ARCHITECTURES, _left_padded, _models

transformers = pytest.importorskip("transformers")

CALLS_EACH = 13
"""Random combinations of parameters for each of 8 models."""

EXTRAS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[5], [6, 7]]},
    {"min_new_tokens": 4},
    {"min_length": 10},
    {"suppress_tokens": [4, 8]},
    {"renormalize_logits": True},
    {"exponential_decay_length_penalty": (2, 1.2)},
    {"sequence_bias": [[[9], 1.5], [[4, 5], -2.0]]},
]
FILTERS: list[dict[str, Any]] = [
    {"temperature": 0.6},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.7},
    {"epsilon_cutoff": 0.01},
]


@functools.cache
def _pair(model_type: str, seed: int) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return _models(model_type, seed, Path(folder))


def _stop_at_multiples(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
    """A user's criterion that ends many candidates at once."""
    return ids[:, -1] % 3 == 0


def _allowed(prompt: int, ids: torch.Tensor) -> list[int]:
    """A user's function that leaves few tokens, though more than there are beams."""
    last = int(ids[-1])
    return [2, *((last * 7 + prompt + 3 * step) % 40 + 3 for step in range(12))]


def _call(choice: random.Random, vocabulary: int) -> dict[str, Any]:
    """Random parameters."""
    beams = choice.randint(2, 5)
    call: dict[str, Any] = {
        "num_beams": beams,
        "num_return_sequences": choice.randint(1, beams),
        "max_new_tokens": choice.randint(1, 25),
        "early_stopping": choice.choice([True, False, "never"]),
        "length_penalty": choice.choice([1.0, 0.0, -1.0, 2.0, 0.7]),
        "pad_token_id": choice.choice([0, 7]),
        "do_sample": choice.random() < 0.4,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    if choice.random() < 0.7:
        count = choice.choice([1, 2, vocabulary // 8])
        call["eos_token_id"] = choice.sample(range(vocabulary), count)
    for extra in choice.sample(EXTRAS, choice.randint(0, 3)):
        call |= extra
    if call["do_sample"]:
        for extra in choice.sample(FILTERS, choice.randint(0, 2)):
            call |= extra
    # Of fewer tokens than are to be drawn nobody can say which ones come.
    if choice.random() < 0.15 and not call["do_sample"]:
        call["prefix_allowed_tokens_fn"] = _allowed
        # Of a beam from which everything is banned it would make NaN.
        call.pop("renormalize_logits", None)
    return call


def _compare(model_type: str, seed: int) -> None:
    """Run one random call here and there."""
    choice = random.Random(f"beams {model_type} {seed}")
    theirs, ours = _pair(model_type, seed % 2)
    call = _call(choice, theirs.config.vocab_size)
    inputs = _left_padded(choice, theirs.config.vocab_size)
    criteria: dict[str, list[Any]] = {"theirs": [], "ours": []}
    if choice.random() < 0.15:
        criteria = {"theirs": [_stop_at_multiples], "ours": [_stop_at_multiples]}
    torch.manual_seed(seed)
    expected = theirs.generate(
        **inputs,
        **call,
        stopping_criteria=transformers.StoppingCriteriaList(criteria["theirs"]),
    )
    torch.manual_seed(seed)
    found = ours.generate(**inputs, **call, stopping_criteria=criteria["ours"])
    assert found.sequences.tolist() == expected.sequences.tolist(), call
    assert found.beam_indices.tolist() == expected.beam_indices.tolist(), call
    near: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, **near)
    for ours_step, theirs_step in zip(found.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours_step, theirs_step, **near)
    for ours_step, theirs_step in zip(found.scores, expected.scores, strict=True):
        # At the edge of a filter rounding may decide whether a token stays.
        both = ours_step.isfinite() & theirs_step.isfinite()
        assert (ours_step.isfinite() != theirs_step.isfinite()).sum() <= 2
        torch.testing.assert_close(ours_step[both], theirs_step[both], **near)
    assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("block", some([0, 1], 1))
@for_each("model_type", ARCHITECTURES)
def test_random_calls(model_type: str, block: int) -> None:
    for round_number in range(CALLS_EACH):
        _compare(model_type, 2 * round_number + block)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_many_random_calls(model_type: str) -> None:
    for seed in range(1000, 1500):
        _compare(model_type, seed)


def test_the_output_has_what_was_asked_for() -> None:
    theirs, ours = _pair("llama", 0)
    prompt = torch.tensor([[5, 6, 7]])
    for asked in ({}, {"output_scores": True}, {"output_logits": True}):
        call = {"num_beams": 2, "max_new_tokens": 4, "return_dict_in_generate": True, **asked}
        found, expected = ours.generate(prompt, **call), theirs.generate(prompt, **call)
        assert type(found).__name__ == type(expected).__name__ == "GenerateBeamDecoderOnlyOutput"
        assert list(found.keys()) == list(expected.keys())
        assert found.beam_indices.dtype is expected.beam_indices.dtype


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("sample", [False, True])
def test_prefix_function_in_every_mode(beams: int, sample: bool) -> None:
    theirs, ours = _pair("llama", 0)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    call: dict[str, Any] = {
        "prefix_allowed_tokens_fn": _allowed,
        "num_beams": beams,
        "do_sample": sample,
        "max_new_tokens": 8,
        "num_return_sequences": 2 if sample else 1,
    }
    torch.manual_seed(1)
    expected = theirs.generate(prompt, **call)
    torch.manual_seed(1)
    assert ours.generate(prompt, **call).tolist() == expected.tolist()
