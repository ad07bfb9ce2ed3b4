"""Diverse and constrained beam search: laws of their streams, and what they promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cases import for_each
from tests.doubles.models import EOS, TableModel
from tests.generation.strategies.laws import check_interrupted, check_stream

PROMPT = torch.tensor([[1, 2, 3]])
GROUPS: dict[str, Any] = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
OPTIONS: list[dict[str, Any]] = [
    GROUPS,
    GROUPS | {"early_stopping": True},
    GROUPS | {"num_beam_groups": 4, "length_penalty": 0.0},
    {"num_beams": 3, "force_words_ids": [[70, 71]]},
    {"num_beams": 3, "force_words_ids": [[[70, 71], [80]], [90]], "early_stopping": True},
    {"num_beams": 2, "force_words_ids": [[70]], "early_stopping": "never"},
]


@pytest.mark.gate
@for_each("seed", range(4))
@for_each("options", OPTIONS)
def test_the_stream_joins_to_the_result_and_cancels_to_a_prefix(
    seed: int, options: dict[str, Any]
) -> None:
    model = TableModel(seed=seed, eos_bias=2.0)
    check_stream(model, PROMPT, {"max_new_tokens": 14, **options})


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3]])
def test_cancelled_between_any_two_steps(options: dict[str, Any]) -> None:
    check_interrupted(TableModel(seed=4, eos_bias=2.0), PROMPT, {"max_new_tokens": 9, **options})


@for_each("seed", range(8))
def test_words_are_there(seed: int) -> None:
    model = TableModel(seed=seed, eos_bias=2.0)
    words: list[Any] = [[70, 71], [[80], [81, 82]]]
    ids: Any = model.generate(
        PROMPT.repeat(2, 1), max_new_tokens=24, num_beams=4, force_words_ids=words
    )
    for row in ids.tolist():
        text = " ".join(map(str, row))
        assert " 70 71" in text
        assert " 80" in text or " 81 82" in text
        if EOS in row:
            assert text.index(" 70 71") < text.index(f" {EOS}")


def test_groups_begin_apart() -> None:
    model = TableModel(seed=1)
    options: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 8}
    apart: Any = model.generate(PROMPT, num_beam_groups=3, diversity_penalty=50.0, **options)
    assert len({row[3] for row in apart.tolist()}) == 3
    together: Any = model.generate(PROMPT, **options)
    assert len({row[3] for row in together.tolist()}) < 3


@for_each("options", OPTIONS)
def test_beam_indices_lead_back_to_the_tokens(options: dict[str, Any]) -> None:
    model = TableModel(seed=2, eos_bias=2.0)
    found: Any = model.generate(
        PROMPT.repeat(2, 1),
        max_new_tokens=10,
        num_return_sequences=2,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **options,
    )
    for ids, rows in zip(found.sequences.tolist(), found.beam_indices.tolist(), strict=True):
        for step, row in enumerate(rows):
            if row >= 0:
                last, place = torch.tensor([ids[2 + step]]), torch.tensor([2 + step])
                logits = found.logits[step][row]
                assert torch.equal(logits, model.core.logits(last, place)[0])


def test_the_words_search_ends_without_an_end_token() -> None:
    model = TableModel(eos_token_id=None)
    ids: Any = model.generate(PROMPT, max_new_tokens=6, **OPTIONS[3])
    assert ids.shape == (1, 9)


@for_each("dtype", [torch.float64, torch.bfloat16])
@for_each("options", [{"num_beams": 3}, OPTIONS[0], OPTIONS[3]])
def test_a_processor_may_return_scores_of_another_dtype(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    model = TableModel(seed=3)
    given: dict[str, Any] = {"max_new_tokens": 8, "logits_processor": [lambda _, scores: scores]}
    right: Any = model.generate(PROMPT, **given, **options)
    given["logits_processor"] = [lambda _, scores: scores.to(dtype)]
    found: Any = model.generate(PROMPT, **given, **options)
    assert found.shape == right.shape
    if dtype == torch.float64:
        assert found.tolist() == right.tolist()
