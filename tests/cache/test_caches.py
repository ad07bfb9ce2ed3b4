"""The documented caches, called as documented, beside those of transformers."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

import asyncgen
from asyncgen.cache.caches import Cache, DynamicCache, make_cache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.layers import DynamicLayer
from asyncgen.cache.offloaded import OffloadedCache
from asyncgen.cache.offloaded_layers import OffloadedLayer, OffloadedStaticLayer
from asyncgen.cache.quantized.fp8_layer import Fp8QuantizedLayer
from asyncgen.cache.quantized.quantized_cache import QuantizedCache
from asyncgen.cache.sink import SinkCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from tests.cases import for_each
from tests.models.build import all_logits, random_config, random_ids, random_pair

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = ModelConfig.from_hf(random_config("llama"))


def states(size: int, rows: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 2, size, 8), torch.randn(rows, 2, size, 8)


def filled(layers: int = 3, size: int = 4) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(*states(size), layer)
    return cache


def test_dynamic_cache_holds_the_same_as_the_reference() -> None:
    cache_utils = pytest.importorskip("transformers.cache_utils")
    ours, theirs = DynamicCache(), cache_utils.DynamicCache()
    for size in (3, 1, 2):
        for layer in range(2):
            new = states(size)
            mine, yours = ours.update(*new, layer), theirs.update(*new, layer)
            assert all(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))
    for cache in (ours, theirs):
        cache.batch_repeat_interleave(2)
        cache.reorder_cache(torch.tensor([3, 0, 1, 1]))
        cache.batch_select_indices(torch.tensor([0, 2]))
        cache.crop(-1)
    assert ours.get_seq_length() == theirs.get_seq_length() == 5
    for index, (keys, values) in enumerate(ours):
        assert torch.equal(keys, theirs.layers[index].keys)
        assert torch.equal(values, theirs.layers[index].values)


@for_each(
    ("indices", "rows"),
    [
        ([2, 0], [2, 0]),
        ((1, 1), [1, 1]),
        (np.array([0, 2], dtype=np.int32), [0, 2]),
        (torch.tensor([2, -3], dtype=torch.int16), [2, 0]),
        (range(1, 3), [1, 2]),
        ([True, False, True], [0, 2]),
    ],
)
def test_rows_are_selected_by_any_indices(indices: Any, rows: list[int]) -> None:
    cache = DynamicCache([(torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 2, 4),) * 2])
    cache.batch_select_indices(indices)
    assert cache[0][0][:, 0, 1, 3].tolist() == cache[0][1][:, 0, 0, 0].tolist() == rows


@for_each("indices", [3, [0, 3], [-4], [0.0], [], [[0]], "01", None, [True, False]])
def test_rows_that_are_not_there_are_refused(indices: Any) -> None:
    cache = DynamicCache([(torch.zeros(3, 1, 2, 4),) * 2])
    with pytest.raises(InvalidRequestError, match="`indices` is .*the 3 rows"):
        cache.batch_select_indices(indices)
    assert cache[0][0].shape == (3, 1, 2, 4)


def test_a_full_cache_is_an_index_error_and_ours() -> None:
    _, core = random_pair("llama", 1)
    cache = StaticCache(core.config, max_batch_size=1, max_cache_len=4)
    all_logits(core, random_ids(1, 4), cache=cache)
    for kind in (IndexError, asyncgen.AsyncgenError, asyncgen.CacheFullError):
        with pytest.raises(kind, match=r"4 positions.*raise `max_cache_len`"):
            all_logits(core, random_ids(1, 1), cache=cache)
    assert cache.get_seq_length() == 4


def test_keys_of_a_model_equal_those_of_the_reference() -> None:
    reference, core = random_pair("qwen3", 1)
    ids, cache = random_ids(2, 7), DynamicCache()
    all_logits(core, ids, cache=cache)
    with torch.no_grad():
        theirs = reference(ids, use_cache=True).past_key_values
    for index, (keys, values) in enumerate(cache):
        torch.testing.assert_close(keys, theirs.layers[index].keys, atol=1e-5, rtol=0)
        torch.testing.assert_close(values, theirs.layers[index].values, atol=1e-5, rtol=0)


def test_a_static_cache_answers_as_the_reference_does() -> None:
    cache_utils = pytest.importorskip("transformers.cache_utils")
    reference, core = random_pair("llama")
    ours = StaticCache(core.config, max_cache_len=6)
    theirs = cache_utils.StaticCache(reference.config, max_cache_len=6)
    for size in (3, 1):
        new = states(size)
        mine, yours = ours.update(*new, 0), theirs.update(*new, 0)
        assert all(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))
    assert ours.get_seq_length() == int(theirs.get_seq_length()) == 4
    assert len(ours) == len(theirs.layers)


def test_legacy_tuples_go_both_ways() -> None:
    cache = filled()
    tuples = cache.to_legacy_cache()
    again = DynamicCache.from_legacy_cache(tuples)
    assert len(tuples) == len(again) == 3
    for (keys, values), (other_keys, other_values) in zip(cache, again, strict=True):
        assert torch.equal(keys, other_keys)
        assert torch.equal(values, other_values)
    assert len(DynamicCache.from_legacy_cache()) == 0
    assert len(DynamicCache(tuples)) == 3


def test_indexing_and_iterating() -> None:
    cache = filled()
    keys, values = cache[1]
    assert keys.shape == values.shape == (2, 2, 4, 8)
    assert len(list(cache)) == len(cache) == 3
    empty = DynamicCache(config=CONFIG)
    assert len(empty) == 3
    assert list(empty) == []
    with pytest.raises(IndexError, match="layer 0 of the cache is empty"):
        empty[0]
    assert repr(cache) == "DynamicCache(layers=3, positions=4)"


def test_an_empty_cache_has_length_zero() -> None:
    assert DynamicCache().get_seq_length() == 0
    assert DynamicCache(config=CONFIG).get_seq_length(2) == 0
    assert DynamicCache().get_max_cache_shape() is None
    assert DynamicCache().get_max_length() is None


def test_reset_forgets() -> None:
    for cache in (filled(), StaticCache(CONFIG, 2, 9)):
        cache.update(*states(1), 0)
        cache.reset()
        assert cache.get_seq_length() == 0


def test_layers_appear_when_they_are_used() -> None:
    cache = DynamicCache()
    cache.update(*states(1), 2, {"cache_position": torch.tensor([0])})
    assert len(cache) == 3
    assert cache.get_seq_length(2) == 1
    assert cache.get_seq_length(0) == 0


@pytest.mark.parametrize(
    "cache",
    [
        StaticCache(CONFIG, 2, 16),
        StaticCache(CONFIG, batch_size=2, max_cache_len=16),
        StaticCache(CONFIG, 2, 16, max_batch_size=2, device="cpu", dtype=torch.float32),
        StaticCache(CONFIG, 2, 16, layer_device_map={0: "cpu", 1: "cpu", 2: "cpu"}),
    ],
)
def test_both_spellings_of_a_static_cache(cache: StaticCache) -> None:
    assert cache.get_max_cache_shape() == cache.max_cache_len == 16
    assert cache.get_max_length() == 16
    cache.update(*states(16), 0)
    with pytest.raises(InvalidRequestError, match="max_cache_len"):
        cache.update(*states(1), 0)


def test_a_device_makes_the_buffers_at_once() -> None:
    cache = StaticCache(CONFIG, 2, 16, device="cpu")
    assert cache[0][0].shape == (2, 2, 16, 8)


def test_a_static_cache_is_as_long_as_the_context_by_default() -> None:
    assert StaticCache(CONFIG).max_cache_len == CONFIG.max_position_embeddings


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_batch_size": 2, "batch_size": 3}, "`batch_size` is 3: max_batch_size is 2"),
        ({"max_batch_size": 0}, "`max_batch_size` is 0"),
        ({"max_cache_len": -1}, "`max_cache_len` is -1"),
    ],
)
def test_bad_sizes_are_refused(keywords: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        StaticCache(CONFIG, **keywords)  # type: ignore[arg-type]


def test_offload_only_non_sliding_leaves_windows_on_the_device() -> None:
    windows = ModelConfig.from_hf(random_config("mistral", sliding_window=5))
    stays = DynamicCache(config=windows, offloading=True, offload_only_non_sliding=True)
    assert not any(isinstance(layer, OffloadedLayer) for layer in stays.layers)
    goes = DynamicCache(config=CONFIG, offloading=True, offload_only_non_sliding=True)
    assert all(isinstance(layer, OffloadedLayer) for layer in goes.layers)
    fixed = StaticCache(windows, 1, 9, offloading=True)
    assert not any(isinstance(layer, OffloadedStaticLayer) for layer in fixed.layers)
    fixed = StaticCache(CONFIG, 1, 9, offloading=True)
    away = [isinstance(layer, OffloadedStaticLayer) for layer in fixed.layers]
    assert away == [False] + [True] * (len(away) - 1)
    with pytest.raises(InvalidRequestError, match="offload_only_non_sliding"):
        DynamicCache(offloading=True, offload_only_non_sliding=True)


def test_model_continues_at_the_end_of_a_cropped_cache() -> None:
    _, core = random_pair("llama", 2)
    ids, cache = random_ids(1, 9), DynamicCache()
    whole = all_logits(core, ids)
    all_logits(core, ids, cache=cache)
    cache.crop(4)
    rest = all_logits(core, ids[:, 4:], cache=cache)
    torch.testing.assert_close(rest, whole[:, 4:], atol=1e-5, rtol=0)


def test_model_continues_with_reordered_rows() -> None:
    _, core = random_pair("llama", 3)
    ids, cache = random_ids(3, 6), DynamicCache()
    all_logits(core, ids, cache=cache)
    order = torch.tensor([2, 0, 2])
    cache.reorder_cache(order)
    more = random_ids(3, 2, seed=1)
    rest = all_logits(core, more, cache=cache)
    whole = all_logits(core, torch.cat((ids[order], more), 1))
    torch.testing.assert_close(rest, whole[:, 6:], atol=1e-5, rtol=0)


def test_make_cache_reserves() -> None:
    cache: Cache = make_cache(CONFIG, 300)
    cache.update(*states(1), 0)
    first = cache.layers[0]
    assert isinstance(first, DynamicLayer)
    assert first.capacity >= 300
    assert make_cache(CONFIG).get_seq_length() == 0


@for_each(
    "make",
    [
        DynamicCache,
        lambda: DynamicCache(config=CONFIG),
        lambda: DynamicCache(offloading=True),
        lambda: StaticCache(config=CONFIG, max_cache_len=16),
        lambda: EncoderDecoderCache(DynamicCache(), DynamicCache()),
        lambda: Cache(layer_class_to_replicate=Fp8QuantizedLayer),
        lambda: QuantizedCache("fp8"),
        lambda: QuantizedCache("HQQ", nbits=8, axis_key=1, axis_value=1),
        lambda: SinkCache(16, 4),
        OffloadedCache,
    ],
)
def test_a_cache_crosses_processes(make: Callable[[], Cache]) -> None:
    cache, first, second = make(), states(3), states(2)
    for layer in range(2):
        cache.update(*first, layer)
    other = pickle.loads(pickle.dumps(cache))
    for layer in range(2):
        for found, wanted in zip(
            other.update(*second, layer), cache.update(*second, layer), strict=True
        ):
            assert torch.equal(found, wanted)
