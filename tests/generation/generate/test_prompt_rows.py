"""A row for every sample, one for all beams, and what processors see of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.prompt_rows import PromptRows, make_prompt_rows
from asyncgen.generation.generate.prompts import DecoderPrompt
from tests.doubles.models import PAD, TableModel, byte_tokenizer

IDS = torch.tensor([[PAD, 65], [66, 67]])
MASK = torch.tensor([[0, 1], [1, 1]])


def _rows(*, has_method: bool = False, **fields: Any) -> PromptRows:
    given = {"tokenizer": byte_tokenizer()}
    config = GenerationConfig(**fields)
    return make_prompt_rows(
        TableModel(), DecoderPrompt(IDS, MASK), config, given, has_method=has_method
    )


def test_samples_are_rows_next_to_each_other() -> None:
    rows = _rows(num_return_sequences=2, do_sample=True)
    assert rows.input_ids.tolist() == [[PAD, 65]] * 2 + [[66, 67]] * 2
    assert rows.padding is not None
    assert rows.padding.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(("groups", "together"), [(1, 4), (2, 2)])
def test_beams_share_a_row_that_processors_see_several_of(groups: int, together: int) -> None:
    rows = _rows(num_beams=4, num_beam_groups=groups, num_return_sequences=3)
    assert torch.equal(rows.input_ids, IDS)
    assert (rows.samples, rows.beams, rows.together) == (1, 4, together)
    assert rows.padding is not None
    assert rows.padding.tolist() == [1] * together + [0] * together


def test_a_method_of_the_caller_sees_every_beam_as_a_row() -> None:
    rows = _rows(num_beams=3, num_return_sequences=2, has_method=True)
    assert (len(rows.input_ids), rows.samples, rows.beams, rows.together) == (6, 3, 1, 1)


def test_healing_biases_every_row() -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"num_beams": 3}, 2),
        ({"num_return_sequences": 2}, 4),
        ({"has_method": True}, 2),
    ]
    for fields, count in cases:
        rows = _rows(token_healing=True, do_sample=count == 4, **fields)
        assert rows.bias is not None
        assert len(rows.bias) == len(rows.input_ids) == count
    rows = _rows(token_healing=True, num_beams=3, has_method=True)
    assert rows.bias is not None
    assert len(rows.bias) == len(rows.input_ids) == 6
