"""Sliding layers: any length in the memory of a window; nothing that a query sees is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncgen.cache.layers import StaticLayer
from asyncgen.cache.sliding import HybridCache, SlidingWindowCache
from asyncgen.cache.sliding_layers import StaticSlidingWindowLayer
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from tests.cache.old import has_hole, steps_of, written
from tests.cases import for_each
from tests.models.build import random_config

if TYPE_CHECKING:
    from asyncgen.cache.static import StaticCache

B, K, D = 2, 3, 4
WINDOWED = ModelConfig.from_hf(random_config("mistral", sliding_window=7))


def pair(size: int) -> Tensor:
    return torch.randn(2, B, K, size, D)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=12),
    window=st.integers(1, 40),
    data=st.data(),
)
def test_append_returns_what_the_window_of_each_query_covers(
    sizes: list[int], window: int, data: st.DataObject
) -> None:
    layer, whole = StaticSlidingWindowLayer(window, window), pair(0)
    for size in sizes:
        start, new = whole.shape[3], pair(size)
        first = max(start + 1 - window, 0)
        whole = torch.cat((whole, new), dim=3)
        keys, values = layer.append(new, first)
        assert torch.equal(keys.view(B, K, -1, D), whole[0, :, :, first:])
        assert torch.equal(values.view(B, K, -1, D), whole[1, :, :, first:])
        assert layer.length == whole.shape[3]
        kept, left = layer.keys, min(layer.length - layer.dropped, window)
        assert kept is not None and kept.shape[2] == window == layer.capacity - 64
        assert torch.equal(kept[:, :, :left], whole[0, :, :, whole.shape[3] - left :])
        assert not kept[:, :, left:].any()
        # Positions of the last piece can be taken back, as far as the buffer holds them.
        if size <= 64:
            back = data.draw(st.integers(0, size - 1))
            layer.crop(-back if back else layer.length)
            whole = whole[:, :, :, : whole.shape[3] - back]


def test_update_returns_the_window_of_the_new_queries() -> None:
    layer, whole = StaticSlidingWindowLayer(5, 5), pair(100)
    layer.update(*whole[:, :, :, :99])
    keys, values = layer.update(*whole[:, :, :, 99:])
    assert torch.equal(keys, whole[0, :, :, 95:])
    assert torch.equal(values, whole[1, :, :, 95:])


def test_crop_to_dropped_positions_is_refused() -> None:
    layer = StaticSlidingWindowLayer(5, 5)
    for _ in range(200):
        layer.append(pair(1), max(layer.length - 4, 0))
    with pytest.raises(InvalidRequestError, match=r"cannot be cropped to 20: .* dropped"):
        layer.crop(20)
    assert layer.length == 200
    layer.crop(tokens_to_remove=200)
    assert layer.length == 0
    new = pair(3)
    keys, _ = layer.append(new)
    assert torch.equal(keys.view(B, K, -1, D), new[0])
    layer.append(pair(300), 0)
    layer.reset()
    assert layer.length == layer.dropped == 0


def test_the_layers_follow_the_model() -> None:
    sliding = SlidingWindowCache(WINDOWED, max_batch_size=2, max_cache_len=30)
    assert {type(layer) for layer in sliding.layers} == {StaticSlidingWindowLayer}
    assert sliding.get_max_cache_shape() == sliding.get_max_length() == 7
    full = ModelConfig.from_hf(random_config("llama"))
    assert {type(layer) for layer in HybridCache(full, 2, 30).layers} == {StaticLayer}
    assert {type(layer) for layer in HybridCache(WINDOWED, 2, 30).layers} == {
        StaticSlidingWindowLayer
    }
    assert HybridCache(full, batch_size=2, max_cache_len=30).get_max_cache_shape() == 30
    with pytest.raises(InvalidRequestError, match="sliding_window"):
        SlidingWindowCache(full, 2, 30)


def test_the_memory_is_that_of_the_window() -> None:
    cache = SlidingWindowCache(WINDOWED, 1)
    shape = (1, WINDOWED.num_key_value_heads, 1, WINDOWED.head_dim)
    buffers = set()
    for _ in range(500):
        for layer in range(len(cache)):
            cache.update(torch.randn(shape), torch.randn(shape), layer)
        keys = cache.layers[0].keys
        assert keys is not None and keys.shape[2] <= 7 + 64
        buffers.add(keys.untyped_storage().data_ptr())
    assert cache.get_seq_length() == 500
    assert len(buffers) == 1
    cache.reorder_cache(torch.tensor([0]))
    cache.reset()
    assert cache.get_seq_length() == 0


FOUR = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "sliding_window": 4,
}
HALF = {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}


def compare(cache: StaticCache, case: dict[str, Any]) -> None:
    """Write what the case writes; equal, or right where that release loses a position."""
    begin, holes = 0, 0
    for size, step in zip(case["sizes"], case["steps"], strict=True):
        for index, theirs in enumerate(step["layers"]):
            ours = written(cache, index, begin, size)
            if not has_hole(theirs["keys"]):
                assert ours == theirs
                continue
            holes += 1
            seen = range(max(begin + 1 - 4, 0) + 1, begin + size + 1)
            assert ours["keys"] == [list(seen), [100 + place for place in seen]]
        begin += size
        if not holes:
            assert step["length"] == min(cache.get_seq_length(), case["steps"][-1]["length"])
    assert cache.get_seq_length() == begin
    assert cache.get_max_cache_shape() == case["max_cache_shape"]
    cache.reorder_cache(torch.tensor([1, 0]))
    if not has_hole(case["reordered"]):
        keys = cache.layers[1].keys
        assert keys is not None
        last = len(case["reordered"][0])
        left = keys[:, 0, -last:, 0].tolist()
        assert [row[: len(left[0])] for row in case["reordered"]] == left
    cache.reset()
    assert cache.get_seq_length() == case["reset"]["length"] == 0
    assert written(cache, 1, 0, 2) == case["reset"]["again"]


@for_each("case", steps_of("SlidingWindowCache"), ids=lambda case: case["sizes"])
def test_a_window_is_that_of_the_reference(case: dict[str, Any]) -> None:
    config = ModelConfig.from_hf(random_config("mistral", **FOUR))
    compare(SlidingWindowCache(config, 2, device="cpu", **case["arguments"]), case)


@pytest.mark.parametrize("case", steps_of("HybridCache"), ids=lambda case: case["sizes"])
def test_a_mixture_is_that_of_the_reference(case: dict[str, Any]) -> None:
    config = ModelConfig.from_hf(random_config("qwen3", **FOUR, **HALF))
    compare(HybridCache(config, 2, **case["arguments"]), case)


def test_the_comparison_sees_holes() -> None:
    found = [
        case["sizes"] for case in steps_of("SlidingWindowCache") if has_hole(case["reordered"])
    ]
    assert found == [[1, 1, 1, 1, 1, 1], [3, 3, 1]]
    assert not has_hole([[1.0, 2.0, 0.0], [101.0, 102.0, 0.0]])


def test_positions_not_yet_written_are_zero() -> None:
    layer, states = StaticSlidingWindowLayer(4, 5), pair(3)
    for keys, filled in ((layer.update(*states)[0], 3), (layer.update(*states[:, :, :, :1])[0], 4)):
        assert keys.shape[2] == 4
        assert keys[:, :, :filled].all()
    layer.crop(1)
    keys, _ = layer.update(*states[:, :, :, 1:2])
    assert torch.equal(keys[:, :, :2], states[0, :, :, :2])
    assert not keys[:, :, 2:].any()


def test_a_device_that_the_model_is_not_on() -> None:
    cache = HybridCache(WINDOWED, 1, 9, device="meta")
    states = torch.zeros(1, WINDOWED.num_key_value_heads, 1, WINDOWED.head_dim)
    with pytest.raises(InvalidRequestError, match=r"cache on meta.*computes on cpu.*`device`"):
        cache.update(states, states, 0)
    assert HybridCache(WINDOWED, 1, 9).layers[0].is_initialized


def test_reorder_applies_to_the_kept_positions() -> None:
    layer = StaticSlidingWindowLayer(8, 8)
    whole = torch.randn(2, 3, 1, 100, 2)
    whole[:, :, :, :97] = whole[:, :1, :, :97]
    layer.append(whole[:, :, :, :70])
    for place in range(70, 100):
        layer.append(whole[:, :, :, place : place + 1], max(place - 7, 0))
    rows = torch.tensor([2, 0, 1])
    layer.exchange(rows, 97)
    assert layer.dropped
    assert layer.keys is not None
    assert torch.equal(layer.keys, whole[0, rows][:, :, -8:])
