"""Objects that a user makes refuse by name what they could never work with, at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer
from tests.models.build import random_config

if TYPE_CHECKING:
    from collections.abc import Callable

IDS = torch.tensor([[5, 6]])
COUNTS: list[Any] = ["2", True, 1.5, math.nan, [2], torch.tensor(2.5)]
NUMBERS: list[Any] = ["0.5", b"1", True, math.nan, [0.5], 1j]
CONFIG: Any = ModelConfig.from_hf(random_config("llama"))
SWITCHES: list[Any] = ["false", 1, None]
TENSORS: list[Any] = ["2", [[5, 6]], IDS.float(), IDS.bool(), torch.tensor(5)]

WRONG: dict[str, tuple[Callable[[Any], object], list[Any]]] = {
    "ngram_size": (asyncgen.NoRepeatNGramLogitsProcessor, COUNTS),
    "encoder_ngram_size": (
        lambda value: asyncgen.EncoderNoRepeatNGramLogitsProcessor(value, IDS),
        COUNTS,
    ),
    "encoder_input_ids": (
        lambda value: asyncgen.EncoderNoRepeatNGramLogitsProcessor(2, value),
        TENSORS,
    ),
    "encoder_input_ids of a penalty": (
        lambda value: asyncgen.EncoderRepetitionPenaltyLogitsProcessor(1.5, value),
        TENSORS,
    ),
    "negative_prompt_ids": (
        lambda value: asyncgen.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, print, value),
        TENSORS,
    ),
    "negative_prompt_attention_mask": (
        lambda value: asyncgen.UnbatchedClassifierFreeGuidanceLogitsProcessor(
            1.5, print, IDS, value
        ),
        ["2", [[1, 1]], torch.ones(1)],
    ),
    "prompt_ignore_length": (
        lambda value: asyncgen.RepetitionPenaltyLogitsProcessor(1.5, value),
        COUNTS,
    ),
    "last_n": (
        lambda value: asyncgen.PresencePenaltyLogitsProcessor(1.5, last_n=value),
        COUNTS,
    ),
    "top_k": (asyncgen.TopKLogitsWarper, COUNTS),
    "top_p": (asyncgen.TopPLogitsWarper, NUMBERS),
    "min_p": (asyncgen.MinPLogitsWarper, NUMBERS),
    "top_h": (asyncgen.TopHLogitsWarper, NUMBERS),
    "typical_p": (asyncgen.TypicalLogitsWarper, NUMBERS),
    "filter_value": (lambda value: asyncgen.TopPLogitsWarper(0.5, value), NUMBERS),
    "filter_value of top-k": (lambda value: asyncgen.TopKLogitsWarper(2, value), NUMBERS),
    "filter_value of top-h": (lambda value: asyncgen.TopHLogitsWarper(0.5, value), NUMBERS),
    "min_tokens_to_keep": (
        lambda value: asyncgen.TopKLogitsWarper(2, min_tokens_to_keep=value),
        COUNTS,
    ),
    "bos_token_id": (asyncgen.ForcedBOSTokenLogitsProcessor, [[], [2, 3]]),
    "max_length of a forced end": (
        lambda value: asyncgen.ForcedEOSTokenLogitsProcessor(value, 2),
        COUNTS,
    ),
    "input_ids_seq_length": (
        lambda value: asyncgen.ExponentialDecayLengthPenalty((1, 1.5), 2, value),
        COUNTS,
    ),
    "begin_index": (
        lambda value: asyncgen.SuppressTokensAtBeginLogitsProcessor([2], value),
        COUNTS,
    ),
    "prefix_allowed_tokens_fn": (
        lambda value: asyncgen.PrefixConstrainedLogitsProcessor(value, 1),
        [None, "2", [2]],
    ),
    "skip_first_ngram_calls": (
        lambda value: asyncgen.SynthIDTextWatermarkLogitsProcessor(
            2, [1], 8, 0, 8, "cpu", skip_first_ngram_calls=value
        ),
        SWITCHES,
    ),
    "debug_mode": (
        lambda value: asyncgen.SynthIDTextWatermarkLogitsProcessor(
            2, [1], 8, 0, 8, "cpu", debug_mode=value
        ),
        SWITCHES,
    ),
    "watermarking_depth": (asyncgen.BayesianDetectorConfig, COUNTS),
    "max_length": (asyncgen.MaxLengthCriteria, COUNTS),
    "max_position_embeddings": (
        lambda value: asyncgen.MaxLengthCriteria(5, value),
        COUNTS,
    ),
    "max_time": (asyncgen.MaxTimeCriteria, NUMBERS),
    "initial_timestamp": (lambda value: asyncgen.MaxTimeCriteria(1.0, value), NUMBERS),
    "assistant_confidence_threshold": (asyncgen.ConfidenceCriteria, NUMBERS),
    "max_cache_len": (asyncgen.StaticLayer, COUNTS),
    "offloading": (lambda value: asyncgen.DynamicCache(offloading=value), SWITCHES),
    "offloading of a cache of layers": (
        lambda value: asyncgen.Cache(
            layer_class_to_replicate=asyncgen.DynamicLayer, offloading=value
        ),
        SWITCHES,
    ),
    "offloading of a static cache": (
        lambda value: asyncgen.StaticCache(CONFIG, max_cache_len=8, offloading=value),
        SWITCHES,
    ),
    "offload_only_non_sliding": (
        lambda value: asyncgen.StaticCache(CONFIG, max_cache_len=8, offload_only_non_sliding=value),
        SWITCHES,
    ),
    "dtype": (
        lambda value: asyncgen.StaticCache(CONFIG, max_cache_len=8, dtype=value),
        ["float32", 2, None, True],
    ),
    "sliding_window": (asyncgen.DynamicSlidingWindowLayer, COUNTS),
    "sliding_window of a static layer": (
        lambda value: asyncgen.StaticSlidingWindowLayer(8, value),
        COUNTS,
    ),
    "window_length": (lambda value: asyncgen.SinkCache(value, 0), COUNTS),
    "num_sink_tokens": (lambda value: asyncgen.SinkCache(8, value), COUNTS),
    "batch_size": (lambda value: asyncgen.BeamSearchScorer(value, 2, "cpu"), COUNTS),
    "length_penalty": (
        lambda value: asyncgen.BeamSearchScorer(1, 2, "cpu", value),
        NUMBERS,
    ),
    "do_early_stopping": (
        lambda value: asyncgen.BeamSearchScorer(1, 2, "cpu", do_early_stopping=value, max_length=9),
        ["false", 1.5],
    ),
    "num_beam_hyps_to_keep": (
        lambda value: asyncgen.BeamSearchScorer(1, 2, "cpu", num_beam_hyps_to_keep=value),
        COUNTS,
    ),
    "num_beams": (lambda value: asyncgen.BeamHypotheses(value, 1.0, False), COUNTS),
    "max_length of a draft": (
        lambda value: asyncgen.PromptLookupCandidateGenerator(max_length=value),
        COUNTS,
    ),
    "vocab_size": (
        lambda value: asyncgen.PromptLookupCandidateGenerator(vocab_size=value),
        COUNTS,
    ),
}
"""Parameter, what is made with a value of it, and values that are refused."""


@for_each("name", WRONG)
def test_a_wrong_value_is_refused_by_name(name: str) -> None:
    make, values = WRONG[name]
    for value in values:
        with pytest.raises(InvalidRequestError, match=name.partition(" ")[0]):
            make(value)


def test_ids_that_are_none_are_refused() -> None:
    for value in ("2", True, 1.5, None, ["2"]):
        with pytest.raises(TypeError):
            asyncgen.ForcedBOSTokenLogitsProcessor(value)  # type: ignore[arg-type]


def test_values_of_other_kinds_that_mean_one_are_taken() -> None:
    assert asyncgen.MaxLengthCriteria(torch.tensor(5)).max_length == 5  # type: ignore[arg-type]
    assert asyncgen.MaxTimeCriteria(2).max_time == 2.0
    assert asyncgen.MaxTimeCriteria(math.inf).max_time == math.inf
    assert asyncgen.TopPLogitsWarper(torch.tensor(0.5)).top_p == 0.5  # type: ignore[arg-type]
    assert asyncgen.TopKLogitsWarper(2, min_tokens_to_keep=0).top_k == 2
    assert asyncgen.ForcedBOSTokenLogitsProcessor(torch.tensor(3)).bos_token_id == 3  # type: ignore[arg-type]


def test_a_text_is_no_switch_of_a_streamer() -> None:
    for kind in (asyncgen.TextStreamer, asyncgen.TextIteratorStreamer):
        with pytest.raises(TypeError, match="skip_prompt"):
            kind(byte_tokenizer(), skip_prompt="false")  # type: ignore[arg-type]


def test_a_time_limit_of_a_streamer_is_a_number() -> None:
    for kind in (asyncgen.TextIteratorStreamer, asyncgen.AsyncTextIteratorStreamer):
        for value in ("2", True, [2], 1j):
            with pytest.raises(TypeError, match="timeout"):
                kind(byte_tokenizer(), timeout=value)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout"):
            kind(byte_tokenizer(), timeout=math.nan)
