"""Beams over two stacks, and what goes on inside the model while they run, as in transformers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.generation.alike import same_layers
from tests.parity.test_beams import _pair
from tests.parity.test_generate import _left_padded
from tests.parity.test_seq2seq import inputs, models

if TYPE_CHECKING:
    from pathlib import Path

ALL = dict.fromkeys(
    "return_dict_in_generate output_scores output_logits output_hidden_states "
    "output_attentions".split(),
    True,
)
CALLS: list[dict[str, Any]] = [
    {"num_beams": 3},
    {"num_beams": 4, "num_return_sequences": 3, "early_stopping": True},
    {"num_beams": 2, "do_sample": True, "length_penalty": 0.3},
    {"num_beams": 3, "decoder_input_ids": torch.tensor([[3, 4, 5], [6, 7, 8], [0, 1, 9]])},
    {"num_beams": 3, "eos_token_id": [5, 9, 20], "early_stopping": "never"},
]


@pytest.mark.parametrize("wants_all", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("seed", range(2))
def test_two_stacks(seed: int, call: dict[str, Any], wants_all: bool, tmp_path: Path) -> None:
    theirs, ours = models(seed, tmp_path)
    options: dict[str, Any] = {"max_new_tokens": 12, **inputs(seed), **call}
    options |= ALL if wants_all else {"return_dict_in_generate": True}
    torch.manual_seed(seed)
    expected = theirs.generate(**options)
    torch.manual_seed(seed)
    found = ours.generate(**options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert found.beam_indices.tolist() == expected.beam_indices.tolist()
    assert list(found.keys()) == list(expected.keys())
    if wants_all:
        same_layers(tuple(found.scores), tuple(expected.scores))
        for name in ("decoder_hidden_states", "decoder_attentions", "cross_attentions"):
            for ours_step, theirs_step in zip(found[name], expected[name], strict=True):
                same_layers(ours_step, theirs_step)


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_inside_of_a_decoder(model_type: str) -> None:
    theirs, ours = _pair(model_type, 0)
    theirs.set_attn_implementation("eager")
    options = _left_padded(random.Random(4), theirs.config.vocab_size) | {
        "num_beams": 3,
        "max_new_tokens": 6,
        "pad_token_id": 0,
        **ALL,
    }
    found, expected = ours.generate(**options), theirs.generate(**options)
    assert found.sequences.tolist() == expected.sequences.tolist()
    for name in ("hidden_states", "attentions"):
        for ours_step, theirs_step in zip(found[name], expected[name], strict=True):
            assert [part.shape for part in ours_step] == [part.shape for part in theirs_step]


def test_the_cache_of_two_stacks_has_a_row_a_beam(tmp_path: Path) -> None:
    _, ours = models(0, tmp_path)
    for name in (None, "static"):
        found = ours.generate(
            **inputs(0),
            num_beams=3,
            max_new_tokens=4,
            cache_implementation=name,
            return_dict_in_generate=True,
        )
        cache = found.past_key_values
        assert {part.shape[0] for part in cache[0]} == {9}
