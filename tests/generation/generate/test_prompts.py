"""Test the start of generation: inferred masks and first tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.prompts import decoder_start, read_prompt
from tests.doubles.models import EOS, PAD, TableModel

IDS = torch.tensor([[PAD, 5, 6], [7, 8, 9]])


def read(inputs: torch.Tensor | None = None, /, **given: Any) -> Any:
    config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, bos_token_id=3)
    return read_prompt(TableModel(), inputs, given, config)


def test_either_name_of_the_prompt() -> None:
    assert torch.equal(read(IDS).input_ids, read(input_ids=IDS).input_ids)
    with pytest.raises(ValueError, match="`inputs` and `input_ids`"):
        read(IDS, input_ids=IDS)


def test_no_prompt_is_a_first_token() -> None:
    assert read().input_ids.tolist() == [[3]]


def test_a_mask_is_inferred_from_padding() -> None:
    assert read(IDS).attention_mask.tolist() == [[False, True, True], [True] * 3]
    assert read(IDS[1:]).attention_mask is None
    assert read(IDS, attention_mask=torch.ones_like(IDS)).attention_mask is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"decoder_start_token_id": 4, "bos_token_id": 1}, [[4], [4]]),
        ({"bos_token_id": 1}, [[1], [1]]),
        ({"decoder_start_token_id": [4, 5]}, [[4], [5]]),
    ],
)
def test_first_tokens_of_a_decoder(config: dict[str, Any], expected: list[list[int]]) -> None:
    assert decoder_start(GenerationConfig(**config), 2).tolist() == expected


@pytest.mark.parametrize("config", [{}, {"decoder_start_token_id": [4]}])
def test_bad_first_tokens(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        decoder_start(GenerationConfig(**config), 2)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"decoder_start_token_id": -1}, "`decoder_start_token_id` is -1"),
        ({"decoder_start_token_id": [4, 96]}, "`decoder_start_token_id` is 96"),
        ({"bos_token_id": 10**9}, "`bos_token_id` is 1000000000"),
    ],
)
def test_first_tokens_that_the_model_has_not(config: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{named}: a sequence begins with it"):
        decoder_start(GenerationConfig(**config), 2, vocab_size=96)
