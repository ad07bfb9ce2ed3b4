"""A cache that is passed on from one call to the next gives what the whole prompt gives."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from tests.parity import test_seq2seq
from tests.parity.test_generate import _left_padded, _models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TURNS = 3
NEW = {"max_new_tokens": 5, "min_new_tokens": 5, "pad_token_id": 0}


def longer(ids: torch.Tensor, turn: int) -> torch.Tensor:
    """The next turn: everything so far and three tokens of the user's."""
    said = torch.randint(4, 60, (len(ids), 3), generator=torch.Generator().manual_seed(turn))
    return torch.cat((ids, said), dim=1)


def continued(mask: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The mask of the prompt, with ones for what came since."""
    return torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)


def legacy(cache: DynamicCache) -> DynamicCache:
    """The same keys and values by way of tuples."""
    return DynamicCache.from_legacy_cache(cache.to_legacy_cache())


def same(cache: Cache) -> Cache:
    return cache


@pytest.mark.parametrize("between", [same, legacy])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "gpt2"])
def test_a_growing_cache(model_type: str, between: Callable[[Any], Any], tmp_path: Path) -> None:
    theirs, ours = _models(model_type, 8, tmp_path)
    prompt = _left_padded(random.Random(8), 60)
    ids, cache = prompt["input_ids"], DynamicCache()
    for turn in range(TURNS):
        call = {"attention_mask": continued(prompt["attention_mask"], ids), **NEW}
        expected = theirs.generate(ids, **call)
        before = cache.get_seq_length()
        found = ours.generate(ids, past_key_values=cache, return_dict_in_generate=True, **call)
        assert found.sequences.tolist() == expected.tolist()
        assert found.past_key_values is cache
        # The last token was never read.
        assert cache.get_seq_length() == expected.shape[1] - 1 > before
        cache = between(cache)
        ids = longer(expected, turn)


@pytest.mark.parametrize("made_by", ["caller", "generate"])
def test_a_cache_of_fixed_shape(made_by: str, tmp_path: Path) -> None:
    theirs, ours = _models("qwen3", 9, tmp_path)
    ids = torch.tensor([[5, 9, 11], [4, 8, 7]])
    cache: Any = None
    if made_by == "caller":
        cache = StaticCache(ours.config, max_batch_size=2, max_cache_len=40)
    for turn in range(TURNS):
        expected = theirs.generate(ids, **NEW)
        options: dict[str, Any] = {"past_key_values": cache}
        if cache is None:
            options = {"cache_implementation": "static", "max_cache_len": 40}
        found = ours.generate(ids, return_dict_in_generate=True, **NEW, **options)
        cache = found.past_key_values
        assert isinstance(cache, StaticCache) and cache.get_max_cache_shape() == 40
        assert found.sequences.tolist() == expected.tolist()
        ids = longer(expected, turn)
    cache.reset()
    again = ours.generate(ids, past_key_values=cache, **NEW)
    assert again.tolist() == theirs.generate(ids, **NEW).tolist()


@pytest.mark.parametrize("kind", ["growing", "fixed", "decoder alone", "legacy"])
def test_a_pair_of_caches(kind: str, tmp_path: Path) -> None:
    theirs, ours = test_seq2seq.models(10, tmp_path)
    prompt = test_seq2seq.inputs(10)
    cache: Any = {
        "growing": EncoderDecoderCache(DynamicCache(), DynamicCache()),
        "legacy": EncoderDecoderCache(DynamicCache(), DynamicCache()),
        "decoder alone": DynamicCache(),
        "fixed": EncoderDecoderCache(
            StaticCache(ours.config, max_batch_size=3, max_cache_len=40),
            StaticCache(ours.config, max_batch_size=3, max_cache_len=9),
        ),
    }[kind]
    ids = torch.zeros(3, 1, dtype=torch.int64)
    for turn in range(TURNS):
        call = {**prompt, "decoder_input_ids": ids, **NEW}
        expected = theirs.generate(**call)
        found = ours.generate(past_key_values=cache, return_dict_in_generate=True, **call)
        assert found.sequences.tolist() == expected.tolist()
        cache = found.past_key_values
        assert isinstance(cache, EncoderDecoderCache)
        if kind == "legacy":
            cache = EncoderDecoderCache.from_legacy_cache(cache.to_legacy_cache())
        ids = longer(expected, turn)


def test_another_answer_after_a_crop(tmp_path: Path) -> None:
    theirs, ours = _models("llama", 11, tmp_path)
    ids, cache = torch.tensor([[5, 9, 11, 4]]), DynamicCache()
    first = ours.generate(ids, past_key_values=cache, **NEW)
    cache.crop(4)
    other = torch.cat((ids, torch.tensor([[7, 7]])), dim=1)
    assert first.shape == (1, 9)
    found = ours.generate(other, past_key_values=cache, **NEW)
    assert found.tolist() == theirs.generate(other, **NEW).tolist()


def test_rows_that_are_selected_go_on(tmp_path: Path) -> None:
    theirs, ours = _models("llama", 12, tmp_path)
    ids, cache = torch.tensor([[5, 9], [4, 8], [6, 6]]), DynamicCache()
    ids = ours.generate(ids, past_key_values=cache, **NEW)
    rows = torch.tensor([2, 0])
    cache.batch_select_indices(rows)
    cache.batch_repeat_interleave(2)
    ids = longer(ids[rows].repeat_interleave(2, dim=0), 0)
    found = ours.generate(ids, past_key_values=cache, **NEW)
    assert found.tolist() == theirs.generate(ids, **NEW).tolist()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"past_key_values": ((1, 2),)}, "from_legacy_cache"),
        ({"past_key_values": 3}, "past_key_values"),
        (
            {"past_key_values": DynamicCache(), "cache_implementation": "static"},
            "cache_implementation",
        ),
        (
            {"past_key_values": DynamicCache([(torch.zeros(1, 1, 3, 8),) * 2])},
            "cache of 3 positions",
        ),
    ],
)
def test_strategies_that_cannot_continue_a_cache_are_refused(
    options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    _, ours = _models("llama", 3, tmp_path)
    with pytest.raises(InvalidRequestError, match=named):
        ours.generate(torch.tensor([[5, 9, 11]]), **NEW, **options)
