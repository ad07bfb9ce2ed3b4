"""One layer's cache: it returns what was written, at a cost that does not grow."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncgen.cache.layers import DynamicLayer, StaticLayer
from asyncgen.cache.sink import SinkLayer
from asyncgen.cache.sliding_layers import DynamicSlidingWindowLayer, StaticSlidingWindowLayer
from asyncgen.errors import CacheFullError, InvalidRequestError
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.cache.layers import BufferLayer

B, K, D = 2, 3, 4


def pair(size: int, rows: int = B) -> Tensor:
    return torch.randn(2, rows, K, size, D)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=6), static=st.booleans())
def test_append_returns_the_keys_and_values_written(sizes: list[int], static: bool) -> None:
    layer = StaticLayer(sum(sizes)) if static else DynamicLayer()
    whole = pair(sum(sizes))
    start = 0
    for size in sizes:
        end = start + size
        first = start // 2
        keys, values = layer.append(whole[:, :, :, start:end], first)
        assert keys.shape == values.shape == (B * K, 1, end - first, D)
        assert torch.equal(keys.view(B, K, -1, D), whole[0, :, :, first:end])
        assert torch.equal(values.view(B, K, -1, D), whole[1, :, :, first:end])
        start = end
    assert layer.length == start


def test_growing_doubles() -> None:
    layer, buffers = DynamicLayer(), set()
    for _ in range(1000):
        layer.append(pair(1))
        keys = layer.keys
        assert keys is not None
        buffers.add(keys.data_ptr())
    assert layer.capacity == 1024
    assert len(buffers) <= 5


def test_reserving_makes_one_buffer() -> None:
    layer, buffers = DynamicLayer(), set()
    layer.reserve(500)
    for _ in range(500):
        layer.append(pair(1))
        keys = layer.keys
        assert keys is not None
        buffers.add(keys.data_ptr())
    assert len(buffers) == 1
    layer.append(pair(1000))
    assert layer.length == 1500


def test_update_returns_everything_of_a_growing_layer() -> None:
    layer = DynamicLayer()
    first, second = pair(3), pair(2)
    layer.update(*first)
    keys, values = layer.update(*second)
    assert torch.equal(keys, torch.cat((first[0], second[0]), 2))
    assert torch.equal(values, torch.cat((first[1], second[1]), 2))


def test_update_returns_the_whole_buffer_of_a_static_layer() -> None:
    layer, new = StaticLayer(7), pair(3)
    keys, values = layer.update(*new)
    assert keys.shape == values.shape == (B, K, 7, D)
    assert torch.equal(keys[:, :, :3], new[0])
    assert not keys[:, :, 3:].any()
    assert layer.keys is not None
    assert layer.keys.data_ptr() == keys.data_ptr()


@for_each("static", [False, True])
@for_each(("length", "left"), [(3, 3), (9, 5), (-2, 3), (-9, 0)])
def test_cropping(static: bool, length: int, left: int) -> None:
    layer = StaticLayer(8) if static else DynamicLayer()
    old, new = pair(5), pair(2)
    layer.append(old)
    layer.crop(length)
    assert layer.length == left
    keys, _ = layer.append(new)
    expected = torch.cat((old[0, :, :, :left], new[0]), 2)
    assert torch.equal(keys.view(B, K, -1, D), expected)


@pytest.mark.parametrize("static", [False, True])
def test_reordering_and_resetting(static: bool) -> None:
    layer = StaticLayer(8) if static else DynamicLayer()
    layer.reorder_cache(torch.tensor([1, 0]))  # nothing there yet
    old = pair(5)
    layer.append(old)
    layer.reorder_cache(torch.tensor([1, 1]))
    assert layer.keys is not None
    assert torch.equal(layer.keys[:, :, :5], old[0][[1, 1]])
    new = pair(1)
    keys, _ = layer.append(new)
    assert torch.equal(keys.view(B, K, -1, D)[:, :, -1:], new[0])
    layer.reset()
    assert layer.length == 0
    assert layer.is_initialized is static


def test_a_growing_layer_changes_its_rows() -> None:
    layer, old = DynamicLayer(), pair(3)
    layer.append(old)
    layer.batch_repeat_interleave(2)
    assert layer.values is not None
    assert torch.equal(layer.values, old[1][[0, 0, 1, 1]])
    layer.append(pair(1, rows=4))
    layer.reorder_cache(torch.tensor([3]))
    assert layer.values.shape == (1, K, 4, D)


def test_a_static_layer_stays_where_it_is() -> None:
    layer = StaticLayer(8, rows=B, dtype=torch.float32)
    layer.allocate(K, D)
    assert layer.keys is not None
    address = layer.keys.data_ptr()
    layer.append(pair(3))
    layer.reorder_cache(torch.tensor([1, 0]))
    layer.crop(1)
    layer.reset()
    layer.append(pair(8))
    assert layer.keys.data_ptr() == address


def test_static_layer_refuses_too_many_positions_or_rows() -> None:
    layer = StaticLayer(4, rows=B, dtype=torch.float32)
    with pytest.raises(CacheFullError, match=r"4 positions.*5 are needed.*max_cache_len"):
        layer.append(pair(5))
    with pytest.raises(InvalidRequestError, match=r"2 rows.*batch has 3 rows"):
        layer.append(pair(1, rows=3))
    with pytest.raises(InvalidRequestError, match=r"float32.*computes in torch\.bfloat16"):
        layer.append(pair(1).bfloat16())
    layer.append(pair(4))
    with pytest.raises(InvalidRequestError, match="5 are needed"):
        layer.append(pair(1))
    with pytest.raises(InvalidRequestError, match="9 are needed"):
        layer.reserve(9)
    layer.reserve(4)
    with pytest.raises(InvalidRequestError, match="number of rows is fixed"):
        layer.reorder_cache(torch.tensor([0]))
    with pytest.raises(InvalidRequestError, match="number of rows is fixed"):
        layer.batch_repeat_interleave(2)
    layer.batch_repeat_interleave(1)
    assert layer.length == 4


def test_a_growing_layer_refuses_other_rows_and_dtypes() -> None:
    layer = DynamicLayer()
    layer.append(pair(3))
    with pytest.raises(InvalidRequestError, match=r"2 rows.*batch has 1 rows"):
        layer.append(pair(1, rows=1))
    with pytest.raises(InvalidRequestError, match=r"float32.*computes in torch\.bfloat16"):
        layer.append(pair(1).bfloat16())
    assert layer.length == 3


def test_a_refused_first_write_leaves_no_trace() -> None:
    layer = StaticLayer(4)
    with pytest.raises(InvalidRequestError):
        layer.append(pair(5))
    assert not layer.is_initialized
    layer.append(pair(4, rows=1))
    assert layer.length == 4


@pytest.mark.parametrize("static", [False, True])
def test_exchanging_rows_leaves_the_common_beginning_alone(static: bool) -> None:
    layer = StaticLayer(9, rows=4) if static else DynamicLayer()
    whole = pair(7, rows=4)
    whole[:, :, :, :5] = whole[:, :1, :, :5]
    layer.append(whole)
    assert layer.keys is not None
    place = layer.keys.data_ptr()
    rows = torch.tensor([2, 0, 2, 1])
    layer.exchange(rows, 5)
    assert layer.keys.data_ptr() == place
    assert torch.equal(layer.keys[:, :, :7], whole[0].index_select(0, rows))
    assert layer.values is not None
    assert torch.equal(layer.values[:, :, :7], whole[1].index_select(0, rows))
    layer.exchange(rows, 7)  # nothing lies behind it
    assert torch.equal(layer.keys[:, :, :7], whole[0].index_select(0, rows))


@for_each(
    "make",
    [
        DynamicLayer,
        SinkLayer,
        lambda: StaticLayer(12, rows=2),
        lambda: DynamicSlidingWindowLayer(4),
        lambda: StaticSlidingWindowLayer(12, 4),
    ],
)
@for_each("copied", [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_reads_what_it_writes(
    make: Callable[[], BufferLayer], copied: Callable[[BufferLayer], BufferLayer]
) -> None:
    layer, other = make(), make()
    first, second = pair(3), pair(2)
    for each in (layer, other):
        each.append(first, 0)
    found, expected = copied(layer).append(second, 1), other.append(second, 1)
    for half, wanted in zip(found, expected, strict=True):
        assert torch.equal(half, wanted)
