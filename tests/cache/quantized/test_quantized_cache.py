"""The documented quantised caches, called as documented, and their memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.quantized.quantized_cache import (
    HQQQuantizedCache,
    QuantizedCache,
    QuantoQuantizedCache,
)
from asyncgen.cache.quantized.settings import QuantizedCacheConfig
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from tests.cache.quantized.made import model_of, states
from tests.cases import for_each
from tests.models.build import random_config

EXACT: dict[str, Any] = {"compute_dtype": None, "device": None}
PROMPT = torch.tensor([[5, 9, 11, 4, 7, 30, 31, 32]])
MASK = torch.ones_like(PROMPT)


def greedy(**more: Any) -> list[int]:
    options = {"max_new_tokens": 12, "attention_mask": MASK, "pad_token_id": 0, **more}
    found: list[int] = model_of(0).generate(PROMPT, eos_token_id=[], **options)[0].tolist()
    return found


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (QuantoQuantizedCache, {"nbits": 4, "axis_key": -1}),
        (HQQQuantizedCache, {"nbits": 2, "axis_key": 1, "axis_value": 1}),
    ],
)
def test_an_object_and_a_name_are_the_same_cache(kind: Any, own: dict[str, Any]) -> None:
    own |= {"q_group_size": 8, "residual_length": 4}
    backend = "HQQ" if kind is HQQQuantizedCache else "quanto"
    by_name = greedy(cache_implementation="quantized", cache_config={"backend": backend, **own})
    settings = QuantizedCacheConfig(**own, **EXACT)
    assert greedy(past_key_values=kind(settings)) == by_name
    named = QuantizedCacheConfig(backend=backend, **own, **EXACT)
    assert greedy(cache_implementation="quantized", cache_config=named) == by_name
    newer = QuantizedCache(backend=backend, config=model_of(0).config, **own)
    assert len(newer) == 2
    assert greedy(past_key_values=newer) == by_name
    assert greedy(past_key_values=QuantizedCache(backend, model_of(0).config, **own)) == by_name
    # It is no plain cache under another name.
    assert by_name != greedy() or backend == "quanto"


def test_model_call_continues_with_the_given_cache() -> None:
    model = model_of(0)
    cache = QuantoQuantizedCache(cache_config=QuantizedCacheConfig(nbits=4, q_group_size=16))
    output = model(PROMPT, past_key_values=cache, use_cache=True)
    assert output.past_key_values is cache
    plain = DynamicCache()
    exact = model(PROMPT, past_key_values=plain, use_cache=True)
    assert torch.equal(output.logits, exact.logits)  # the prompt reads what it wrote
    more = torch.tensor([[8]])
    near = model(more, past_key_values=cache, use_cache=True).logits
    exact = model(more, past_key_values=plain, use_cache=True).logits
    assert not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, atol=1.0, rtol=0)
    assert cache.get_seq_length() == 9
    assert repr(cache) == "QuantoQuantizedCache(layers=2, positions=9)"


def test_everything_that_a_cache_does() -> None:
    cache = QuantizedCache(backend="quanto", q_group_size=8, residual_length=4)
    assert (len(cache), cache.get_seq_length(), list(cache)) == (0, 0, [])
    for seed, size in enumerate((5, 1, 1)):
        for layer in range(2):
            given = states([2, 2, size, 8], seed)
            keys, values = cache.update(given, -given, layer)
    assert cache.get_seq_length() == keys.shape[2] == values.shape[2] == 7
    assert cache.get_max_cache_shape() is None
    before = cache.to_legacy_cache()
    assert len(before) == len(cache) == 2
    cache.reserve(100)
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([3, 0, 1, 2]))
    cache.batch_select_indices(torch.tensor([0, 1, 3]))
    cache.crop(-1)
    for (keys, values), (old_keys, old_values) in zip(cache, before, strict=True):
        assert torch.equal(keys, old_keys[[1, 0, 1], :, :6])
        assert torch.equal(values, old_values[[1, 0, 1], :, :6])
    cache.reset()
    assert cache.get_seq_length() == 0
    with pytest.raises(IndexError, match="empty"):
        cache[0]


def tensors_of(thing: Any, seen: set[int]) -> list[torch.Tensor]:
    """Every tensor that an object holds, each memory once."""
    if id(thing) in seen or isinstance(thing, type):
        return []
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        pointer = thing.untyped_storage().data_ptr()
        if pointer in seen:
            return []
        seen.add(pointer)
        return [thing]
    if isinstance(thing, list | tuple):
        parts = list(thing)
    else:
        slots = getattr(type(thing), "__slots__", ())
        parts = [getattr(thing, name) for name in slots] + list(
            getattr(thing, "__dict__", {}).values()
        )
    return [tensor for part in parts for tensor in tensors_of(part, seen)]


def bytes_of(cache: Any) -> int:
    return sum(each.untyped_storage().nbytes() for each in tensors_of(cache.layers, set()))


def filled(cache: Any, positions: int = 4096, prompt: int = 4000) -> Any:
    """A prompt and more positions, in bfloat16, of a head of 64."""
    for size in filter(None, (prompt, positions - prompt)):
        given = torch.randn(1, 1, size, 64, dtype=torch.bfloat16)
        cache.update(given, given, 0)
    return cache


@for_each(
    ("settings", "most"),
    [
        ({"backend": "quanto", "nbits": 4}, 0.33),
        ({"backend": "quanto", "nbits": 2}, 0.21),
        ({"backend": "hqq", "nbits": 4, "axis_key": 1, "axis_value": 1}, 0.33),
        ({"backend": "hqq", "nbits": 3, "axis_key": 1, "axis_value": 1}, 0.27),
        ({"backend": "hqq", "nbits": 1, "axis_key": 1, "axis_value": 1}, 0.15),
    ],
    ids=lambda value: f"{value['backend']}{value['nbits']}" if isinstance(value, dict) else "",
)
def test_it_takes_as_little_as_it_says(settings: dict[str, Any], most: float) -> None:
    plain = bytes_of(filled(DynamicCache(), prompt=4096))
    assert plain == 2 * 4096 * 64 * 2  # keys and values, bytes
    # The newest 96 positions are exact, of 127 at most: the buffer for them is counted whole.
    assert bytes_of(filled(QuantizedCache(**settings))) <= most * plain


def test_settings_and_models_that_do_not_fit_are_refused() -> None:
    config = QuantizedCacheConfig()
    with pytest.raises(InvalidRequestError, match="`nbits` is 2: is a setting of `cache_config`"):
        QuantizedCache(config, nbits=2)
    with pytest.raises(InvalidRequestError, match="first argument"):
        QuantizedCache("quanto", backend="hqq")
    with pytest.raises(InvalidRequestError, match="`axis_key` is -1"):
        HQQQuantizedCache(QuantizedCacheConfig(axis_key=-1))
    with pytest.raises(InvalidRequestError, match="make a `QuantizedCache`"):
        QuantizedCache.from_legacy_cache([])
    sliding = random_config("mistral", sliding_window=6)
    with pytest.raises(InvalidRequestError, match="sliding window"):
        QuantizedCache("quanto", ModelConfig.from_hf(sliding))


def test_group_sizes_that_fit_neither_the_model_nor_the_prompt_are_refused() -> None:
    for size in (7, 20, 128):  # of 64 numbers, 32 of them keys, and 8 positions: 256 in all
        with pytest.raises(InvalidRequestError, match=f"`q_group_size` is {size}: .* 64"):
            greedy(
                cache_implementation="quantized",
                cache_config={"q_group_size": size, "axis_key": -1},
            )
        cache = QuantizedCache(backend="quanto", axis_value=-1, q_group_size=size)
        with pytest.raises(InvalidRequestError, match=f"`q_group_size` is {size}"):
            greedy(past_key_values=cache)
        assert cache.get_seq_length() == 0
    # Sizes that divide the model's width always work, and others where they come out even.
    for size, axis in ((64, -1), (64, 0), (128, 0), (16, -1)):
        config = {"q_group_size": size, "axis_key": axis, "axis_value": axis}
        assert len(greedy(cache_implementation="quantized", cache_config=config)) == 20
