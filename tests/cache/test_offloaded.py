"""Offloaded caches hold the same as their plain kinds, on the device of the incoming keys."""

from __future__ import annotations

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.layers import DynamicLayer, StaticLayer
from asyncgen.cache.offloaded import OffloadedCache, OffloadedStaticCache
from asyncgen.cache.offloaded_layers import OffloadedLayer, OffloadedStaticLayer
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from tests.cache.old import expected, steps_of, written
from tests.models.build import random_config

CONFIG = ModelConfig.from_hf(random_config("llama"))


def test_a_growing_one() -> None:
    cache = OffloadedCache()
    keys, values = torch.randn(2, 1, 2, 3, 8)
    for layer in range(3):
        cache.prefetch_layer(layer)
        found = cache.update(keys, values, layer)
        cache.evict_previous_layer(layer)
        assert torch.equal(found[0], keys) and torch.equal(found[1], values)
    assert all(type(layer) is OffloadedLayer for layer in cache.layers)
    again = OffloadedCache.from_legacy_cache(cache.to_legacy_cache())
    assert type(again) is OffloadedCache
    assert again.get_seq_length() == 3


def test_a_fixed_one() -> None:
    cache = OffloadedStaticCache(CONFIG, max_batch_size=2, max_cache_len=9, device="cpu")
    kinds = [type(layer) for layer in cache.layers]
    assert kinds == [StaticLayer] + [OffloadedStaticLayer] * (len(kinds) - 1)
    assert (cache.max_batch_size, cache.max_cache_len, cache.dtype) == (2, 9, torch.float32)
    assert cache.device == cache.offload_device == torch.device("cpu")
    assert len(cache.key_cache) == len(cache.value_cache) == len(kinds)
    shape = (2, CONFIG.num_key_value_heads, 4, CONFIG.head_dim)
    cache.update(torch.ones(shape), torch.ones(shape), 1)
    assert cache.get_seq_length(1) == 4
    cache.reset()
    assert not cache.key_cache[1].any()
    with pytest.raises(InvalidRequestError, match="max_cache_len"):
        OffloadedStaticCache(CONFIG, max_batch_size=2, max_cache_len=0)
    with pytest.raises(InvalidRequestError, match="max_batch_size is 2"):
        OffloadedStaticCache(CONFIG, max_batch_size=2, batch_size=3)


@pytest.mark.parametrize("kind", [DynamicCache, OffloadedCache])
def test_growing_ones_are_those_of_the_reference(kind: type[DynamicCache]) -> None:
    # An offloaded one of that release needs a GPU; it holds what the plain one holds.
    [case] = steps_of("DynamicCache")
    cache, begin = kind(), 0
    for size, step in zip(case["sizes"], case["steps"], strict=True):
        for index, theirs in enumerate(step["layers"]):
            assert written(cache, index, begin, size) == theirs
        begin += size
        assert cache.get_seq_length() == step["length"]
    assert cache.get_max_cache_shape() == case["max_cache_shape"]
    cache.reorder_cache(torch.tensor([1, 0]))
    legacy = cache.to_legacy_cache()
    assert [[each[:, 0, :, 0].tolist() for each in layer] for layer in legacy] == case["legacy"]
    assert legacy[1][0][:, 0, :, 0].tolist() == case["reordered"]


@pytest.mark.parametrize("name", ["StaticCache", "OffloadedStaticCache"])
def test_fixed_ones_are_those_of_the_reference(name: str) -> None:
    config = ModelConfig.from_hf(expected()["shape"] | {"model_type": "llama"})
    kind = {"StaticCache": StaticCache, "OffloadedStaticCache": OffloadedStaticCache}[name]
    [case] = steps_of(name)
    cache, begin = kind(config, 2, device="cpu", **case["arguments"]), 0
    for size, step in zip(case["sizes"], case["steps"], strict=True):
        for index, theirs in enumerate(step["layers"]):
            assert written(cache, index, begin, size) == theirs
        begin += size
        assert cache.get_seq_length() == step["length"]
    assert cache.get_max_cache_shape() == case["max_cache_shape"]
    cache.reorder_cache(torch.tensor([1, 0]))
    keys = cache.layers[1].keys
    assert keys is not None and keys[:, 0, :, 0].tolist() == case["reordered"]
    cache.reset()
    assert cache.get_seq_length() == case["reset"]["length"] == 0
    again, theirs = written(cache, 1, 0, 2), case["reset"]["again"]
    # That release leaves the buffer on the device as it was: only what was written tells.
    written_to = slice(2 if name == "OffloadedStaticCache" else None)
    for ours, row in zip(again["keys"], theirs["keys"], strict=True):
        assert ours[written_to] == row[written_to]
        assert not any(ours[2:])


@pytest.mark.parametrize(
    ("away", "plain"),
    [
        (OffloadedLayer(), DynamicLayer()),
        (OffloadedStaticLayer(20, device="cpu"), StaticLayer(20)),
    ],
)
def test_they_are_the_plain_layers_on_the_cpu(
    away: DynamicLayer | StaticLayer, plain: DynamicLayer | StaticLayer
) -> None:
    for size in (5, 1, 1):
        pair = torch.randn(2, 2, 3, size, 4)
        for one, other in zip(away.append(pair, 2), plain.append(pair, 2), strict=True):
            assert torch.equal(one, other)
    keys, values = torch.randn(2, 2, 3, 1, 4)
    for one, other in zip(away.update(keys, values), plain.update(keys, values), strict=True):
        assert torch.equal(one, other)
    away.crop(3)
    assert away.length == 3


@pytest.mark.cuda
def test_they_stay_away_from_the_gpu() -> None:
    for layer in (OffloadedLayer(), OffloadedStaticLayer(20, device="cpu")):
        pair = torch.randn(2, 1, 2, 3, 4, device="cuda")
        keys, values = layer.append(pair)
        assert keys.is_cuda and values.is_cuda
        assert layer.keys is not None and layer.keys.device.type == "cpu"
        assert torch.equal(keys.view(1, 2, 3, 4), pair[0])
