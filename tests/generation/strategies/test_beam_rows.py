"""Beams share the prompt's forward, whatever the cache holds already."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003
from typing import Any

import pytest
import torch

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.reference.load_model import load_model
from tests.fixtures import tiny_llama

PROMPT = torch.tensor([[5, 9, 11, 4], [0, 0, 7, 8]])
MASK = (PROMPT != 0).long()
OPTIONS: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("model")
    tiny_llama.save(folder, 3)
    return load_model(folder)


@pytest.fixture(scope="module")
def expected(model: Any) -> list[list[int]]:
    return model.generate(PROMPT, attention_mask=MASK, **OPTIONS).tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 1},
        {"prefill_chunk_size": 3, "cache_implementation": "static"},
    ],
)
def test_caches_and_chunks_change_nothing(
    model: Any, expected: list[list[int]], options: dict[str, Any]
) -> None:
    found = model.generate(PROMPT, attention_mask=MASK, **OPTIONS, **options)
    assert found.tolist() == expected


def _begun(model: Any, rows: torch.Tensor, mask: torch.Tensor) -> Cache:
    """A cache that holds all but the last token of the prompt."""
    cache = DynamicCache()
    model(rows[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache)
    return cache


@pytest.mark.parametrize("beams", [1, 3])
def test_a_cache_with_a_row_a_prompt_or_a_beam_is_continued(
    model: Any, expected: list[list[int]], beams: int
) -> None:
    rows, mask = PROMPT.repeat_interleave(beams, 0), MASK.repeat_interleave(beams, 0)
    cache = _begun(model, rows, mask)
    found = model.generate(PROMPT, attention_mask=MASK, past_key_values=cache, **OPTIONS)
    assert found.tolist() == expected
    keys, _ = cache[0]
    assert keys.shape[0] == 6


def test_a_cache_of_other_rows_is_refused(model: Any) -> None:
    cache = _begun(model, PROMPT.repeat(2, 1), MASK.repeat(2, 1))
    with pytest.raises(InvalidRequestError, match="cache of 4 rows"):
        model.generate(PROMPT, attention_mask=MASK, past_key_values=cache, **OPTIONS)


def test_a_static_cache_has_its_rows_from_the_start(model: Any, expected: list[list[int]]) -> None:
    cache = StaticCache(model.core.config, max_batch_size=6, max_cache_len=32)
    found = model.generate(PROMPT, attention_mask=MASK, past_key_values=cache, **OPTIONS)
    assert found.tolist() == expected
