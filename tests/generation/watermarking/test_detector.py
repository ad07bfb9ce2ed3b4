"""Detectors: every output against transformers."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.watermarking.bayes import BayesianDetectorConfig, BayesianDetectorModel
from asyncgen.generation.watermarking.detector import (
    SynthIDTextWatermarkDetector,
    WatermarkDetector,
    WatermarkDetectorOutput,
)
from asyncgen.generation.watermarking.greenlist import WatermarkingConfig
from tests.cases import for_each
from tests.generation.watermarking.test_synthid import both

MODEL = transformers.LlamaConfig(vocab_size=50, bos_token_id=1, eos_token_id=2)


@pytest.mark.gate
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from(["lefthash", "selfhash"]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([15485863, 2**62 + 12345]),
    st.floats(-3, 3),
)
def test_every_output(
    seed: int, scheme: str, width: int, once: bool, begins: bool, key: int, threshold: float
) -> None:
    torch.manual_seed(seed)
    values = {"seeding_scheme": scheme, "context_width": width, "hashing_key": key}
    ids = torch.randint(3, 9, (3, 20))
    if begins:
        ids[:, 0] = 1
    ours = WatermarkDetector(MODEL, "cpu", values, once)
    theirs = transformers.WatermarkDetector(
        MODEL, "cpu", transformers.WatermarkingConfig(**values), once
    )
    found = ours(ids, threshold, return_dict=True)
    expected = theirs(ids, threshold, return_dict=True)
    assert isinstance(found, WatermarkDetectorOutput)
    for field in fields(found):
        value, wanted = getattr(found, field.name), getattr(expected, field.name)
        assert value.dtype == wanted.dtype
        assert numpy.allclose(value, wanted, atol=1e-12), field.name
    prediction = ours(ids, threshold)
    assert isinstance(prediction, numpy.ndarray)
    assert numpy.array_equal(prediction, theirs(ids, threshold))


@for_each(
    ("ids", "match"),
    [
        (torch.tensor([[1, 5, 6, 7], [5, 5, 6, 7]]), "beginning-of-sequence"),
        (torch.tensor([[5, 5, 6, 7], [1, 5, 6, 7]]), "beginning-of-sequence"),
        (torch.tensor([[5, 6]]), "longer than the context"),
        (torch.tensor([[1, 6, 7]]), "longer than the context"),
        (torch.tensor([5, 6, 7]), r"\[B, T\]"),
    ],
)
def test_texts_that_cannot_be_looked_at(ids: torch.Tensor, match: str) -> None:
    detector = WatermarkDetector(MODEL, "cpu", WatermarkingConfig(context_width=2))
    with pytest.raises(InvalidRequestError, match=match):
        detector(ids)


GPT2 = transformers.GPT2Config(vocab_size=50, bos_token_id=49, eos_token_id=49)
FILLS: dict[str, tuple[Any, list[int], list[int]]] = {
    "one token begins, ends and fills": (GPT2, [49], []),
    "the end fills": (MODEL, [2], [1]),
    "of several ends each": (transformers.LlamaConfig(vocab_size=50, eos_token_id=[2, 5]), [5], []),
    "a token of its own": (transformers.LlamaConfig(vocab_size=50, pad_token_id=0), [0], [1]),
    "nothing begins": (transformers.LlamaConfig(vocab_size=50, pad_token_id=0), [0], []),
    "the decoder begins with the filler": (transformers.T5Config(vocab_size=50), [0], []),
}
"""Configurations; what stands on the left of shorter texts, and what all texts begin with."""


@for_each(("name", "scheme"), [(name, each) for name in FILLS for each in ("lefthash", "selfhash")])
def test_padded_rows_count_as_they_do_alone(name: str, scheme: str) -> None:
    config, filler, begin = FILLS[name]
    if config.is_encoder_decoder:
        config.decoder_start_token_id = 0
    torch.manual_seed(3)
    values = {"seeding_scheme": scheme, "context_width": 2}
    texts = [torch.randint(6, 12, (length,)).tolist() for length in (9, 20, 14)]
    rows = [filler * (20 - len(text)) + begin + text for text in texts]
    found = WatermarkDetector(config, "cpu", values)(torch.tensor(rows), return_dict=True)
    theirs = transformers.WatermarkDetector(
        config, "cpu", transformers.WatermarkingConfig(**values)
    )
    alone = [theirs(torch.tensor([begin + text]), return_dict=True) for text in texts]
    for field in fields(WatermarkDetectorOutput):
        wanted = numpy.concatenate([getattr(each, field.name) for each in alone])
        assert numpy.allclose(getattr(found, field.name), wanted, atol=1e-12), field.name


def test_a_row_of_padding_is_too_short() -> None:
    detector = WatermarkDetector(GPT2, "cpu", WatermarkingConfig())
    with pytest.raises(InvalidRequestError, match="a text of 0 tokens"):
        detector(torch.tensor([[49, 49, 49, 49], [3, 4, 5, 6]]))


def test_settings_of_another_watermark() -> None:
    with pytest.raises(InvalidRequestError, match="SynthIDTextWatermarkDetector"):
        WatermarkDetector(MODEL, "cpu", {"ngram_len": 4, "keys": [1]})


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_synthid(seed: int, has_end: bool) -> None:
    torch.manual_seed(seed)
    ours, theirs = both()
    module = transformers.BayesianDetectorModel(
        transformers.BayesianDetectorConfig(watermarking_depth=4)
    )
    own = BayesianDetectorModel(BayesianDetectorConfig(4))
    own.load_state_dict(module.state_dict())
    tokenizer: Any = SimpleNamespace(eos_token_id=2 if has_end else 40)
    ids = torch.randint(0, 4, (3, 20))
    (found,) = SynthIDTextWatermarkDetector(own, ours, tokenizer)(ids)
    (expected,) = transformers.SynthIDTextWatermarkDetector(module, theirs, tokenizer)(ids)
    assert torch.allclose(found, expected, atol=1e-6)
