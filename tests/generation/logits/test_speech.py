"""The rules of speech models, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits.speech import (
    AlternatingCodebooksLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from tests.generation.logits.against import Case, assert_agrees, cases


@settings(max_examples=40, deadline=None)
@given(cases((20, 60)), st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))
def test_alternating_codebooks(case: Case, start: int, semantic: int, size: int) -> None:
    theirs = reference.AlternatingCodebooksLogitsProcessor(start, semantic, size)
    assert_agrees(AlternatingCodebooksLogitsProcessor(start, semantic, size), theirs, case)


@pytest.mark.parametrize("sizes", [(-1, 4, 3), (1.0, 4, 3), (0, -1, 3), (0, 4, 0)])
def test_bad_codebooks(sizes: Any) -> None:
    with pytest.raises(InvalidRequestError):
        AlternatingCodebooksLogitsProcessor(*sizes)


def _configs(**values: Any) -> tuple[GenerationConfig, Any]:
    return GenerationConfig(**values), transformers.GenerationConfig(**values)


@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(0, 2**31), st.sampled_from([None, True, False]))
def test_whisper_timestamps(data: st.DataObject, seed: int, detect: bool | None) -> None:
    torch.manual_seed(seed)
    begin, length = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 7))
    batch, size = data.draw(st.integers(1, 3)), 24
    # Ids 0-9 are text, 10 ends it, 11 marks texts without timestamps, timestamps begin at 12.
    values: dict[str, Any] = {"eos_token_id": 10, "no_timestamps_token_id": 11}
    initial = data.draw(st.sampled_from([None, 0, 3]))
    if initial is not None:
        values["max_initial_timestamp_index"] = initial
    ours, theirs = _configs(**values)
    ids = torch.randint(0, size, (batch, begin + length))
    scores = torch.randn(batch, size) * data.draw(st.sampled_from([0.1, 3.0, 9.0]))
    assert_agrees(
        WhisperTimeStampLogitsProcessor(ours, begin, detect),
        reference.WhisperTimeStampLogitsProcessor(theirs, begin, detect),
        (ids, scores),
    )


def test_begin_may_be_set_later() -> None:
    ours, theirs = _configs(eos_token_id=2, no_timestamps_token_id=3)
    first = WhisperTimeStampLogitsProcessor(ours, 1)
    second = reference.WhisperTimeStampLogitsProcessor(theirs, 1)
    first.set_begin_index(2)
    second.set_begin_index(2)
    assert_agrees(first, second, (torch.tensor([[1, 1]]), torch.randn(1, 9)))


@pytest.mark.parametrize(
    ("values", "begin", "name"),
    [
        ({"eos_token_id": 2}, 1, "no_timestamps_token_id"),
        ({"no_timestamps_token_id": 3}, 1, "eos_token_id"),
        ({"no_timestamps_token_id": 3, "eos_token_id": [1, 2]}, 1, "eos_token_id"),
        ({"no_timestamps_token_id": 3, "eos_token_id": 2}, None, "begin_index"),
    ],
)
def test_bad_timestamps(values: dict[str, Any], begin: int | None, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        WhisperTimeStampLogitsProcessor(GenerationConfig(**values), begin)
    assert caught.value.parameter == name
