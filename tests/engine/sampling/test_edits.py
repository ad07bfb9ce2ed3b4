"""Edits change what they mean, and not a bit of any other row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.engine.sampling.edits import EDITS, Part
from asyncgen.engine.sampling.row import SamplerRow
from asyncgen.engine.sampling.scores import BatchScores
from asyncgen.errors import InvalidScoresError
from asyncgen.generation.logits import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    SequenceBiasLogitsProcessor,
)
from tests.doubles.models import EOS, VOCABULARY
from tests.engine.making import request_for

SETTINGS: list[dict[str, Any]] = [
    {"sequence_bias": [[[5], -2.0], [[2, 9], 3.0], [[1, 2, 9], 0.5]]},
    {"bad_words_ids": [[5], [2, 9], [3, 9]]},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 1},
    {"min_length": 5},
    {"min_new_tokens": 2},
    {"forced_eos_token_id": [EOS, 7], "max_new_tokens": 1},
    {"exponential_decay_length_penalty": (-3, 1.5)},
    {"suppress_tokens": [1, VOCABULARY - 1]},
    {"begin_suppress_tokens": [1, 2]},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 0.5},
]


def test_every_edit_is_looked_at() -> None:
    made = {type(request_for([1], **each)[0].processors[-1]).__name__ for each in SETTINGS}
    # The start of a decoder is forced only where there is an encoder.
    assert {kind.__name__ for kind in EDITS} - made == {"ForcedBOSTokenLogitsProcessor"}


@pytest.mark.parametrize("given", SETTINGS, ids=lambda given: next(iter(given)))
def test_an_edit_is_the_processor_and_leaves_the_neighbours(given: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, VOCABULARY, generator=generator)
    rows = [
        SamplerRow(request_for(prompt, **kind)[0], 0)
        for prompt, kind in (([9], {}), ([1, 2], given), ([4], {}), ([1, 2], given))
    ]
    for generated in ([], [2], [2]):
        for row in rows:
            row.token_ids.extend(generated)
        scores = BatchScores(logits, rows, own=True)
        original = rows[1].originals[-1]
        edit, can_do = EDITS[type(original)]
        assert can_do(original, VOCABULARY)
        parts = [
            Part(number, rows[number].originals[-1], rows[number].memories[-1]) for number in (1, 3)
        ]
        edit(parts, scores)(scores)
        assert torch.equal(scores.values[::2], logits[::2])
        for number in (1, 3):
            ids = torch.tensor([rows[number].token_ids])
            alone = rows[number].processors[-1](ids, logits[number : number + 1])
            assert torch.equal(scores.values[number : number + 1], alone)
        assert not scores.failures


def test_tokens_outside_of_the_vocabulary_are_left_to_the_processor() -> None:
    for processor in (
        SequenceBiasLogitsProcessor([[[5000], -2.0]]),
        ForcedEOSTokenLogitsProcessor(9, 5000),
        ForcedBOSTokenLogitsProcessor(5000),
        ForcedBOSTokenLogitsProcessor("a"),  # type: ignore[arg-type]
    ):
        _, can_do = EDITS[type(processor)]
        assert not can_do(processor, VOCABULARY)


def test_a_row_whose_decay_overflows_fails_alone() -> None:
    kinds = [{"exponential_decay_length_penalty": (0, factor)} for factor in (1e300, 1.5)]
    rows = [SamplerRow(request_for([1], **kind)[0], 0) for kind in kinds]
    for row in rows:
        row.token_ids += [2, 3, 4]
    logits = torch.randn(2, VOCABULARY)
    scores = BatchScores(logits, rows, own=True)
    [original] = rows[0].originals
    edit, _ = EDITS[type(original)]
    edit([Part(number, row.originals[0], {}) for number, row in enumerate(rows)], scores)(scores)
    assert list(scores.failures) == [0]
    assert isinstance(scores.failures[0], InvalidScoresError)
    assert scores.failures[0].processor == "ExponentialDecayLengthPenalty"
    alone = rows[1].processors[0](torch.tensor([rows[1].token_ids]), logits[1:])
    assert torch.equal(scores.values[1:], alone)
