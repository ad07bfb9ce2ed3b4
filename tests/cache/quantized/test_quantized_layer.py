"""A quantised layer: its stored numbers, the ones it returns, and operations on its rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from asyncgen.cache.quantized.backends import BACKENDS
from asyncgen.cache.quantized.quantized_layer import (
    HQQQuantizedLayer,
    QuantizedLayer,
    QuantoQuantizedLayer,
)
from asyncgen.errors import InvalidRequestError
from tests.cache.quantized.made import expected, states
from tests.cases import for_each


def layer_of(residual_length: int = 4, *, name: str = "quanto", bits: int = 4, **more: Any) -> Any:
    kind = {"quanto": QuantoQuantizedLayer, "hqq": HQQQuantizedLayer}[name]
    axis = BACKENDS[name].axes[0]
    return kind(bits, axis, axis, 8, residual_length, **more)


def write(layer: QuantizedLayer, size: int, *, rows: int = 2, seed: int = 0) -> Tensor:
    keys = states([rows, 2, size, 8], seed)
    return layer.update(keys, -keys)[0].clone()


@for_each("case", expected()["steps"], ids=lambda case: str(case["sizes"]))
def test_layer_returns_the_keys_of_the_reference(case: dict[str, Any]) -> None:
    layer = layer_of(case["residual_length"])
    for index, (size, wanted) in enumerate(zip(case["sizes"], case["keys"], strict=True)):
        if index in case.get("reordered", ()):
            layer.reorder_cache(torch.tensor([1, 0]))
        given = states([2, 1, size, 8], index)
        keys, values = layer.update(given, -given)
        assert keys[:, 0, :, 0].flatten().tolist() == pytest.approx(wanted, abs=6e-5)
        assert layer.length == keys.shape[2] == values.shape[2]


def test_the_newest_positions_are_exact_and_the_others_are_near() -> None:
    layer = layer_of(4)
    first = write(layer, 5)
    assert torch.equal(first, states([2, 2, 5, 8], 0))
    given = first
    for seed in range(1, 4):
        new = states([2, 2, 1, 8], seed)
        given = torch.cat((given, new), dim=2)
        keys = write(layer, 1, seed=seed)
        assert torch.equal(keys[:, :, 5:], given[:, :, 5:])
        assert not torch.equal(keys[:, :, :5], given[:, :, :5])
        torch.testing.assert_close(keys, given, atol=0.25, rtol=0)
    write(layer, 1, seed=9)  # the fourth behind the prompt: everything is quantised
    keys = write(layer, 1, seed=10)
    assert not torch.equal(keys[:, :, 5:8], given[:, :, 5:8])


def test_a_layer_of_a_model_gets_heads_and_rows_in_one() -> None:
    layer, same = layer_of(2), layer_of(2)
    for seed, size in enumerate((3, 1, 1, 1)):
        given = states([2, 2, size, 8], seed)
        keys, values = layer.append(torch.stack((given, -given)), 1)
        wanted = same.update(given, -given)
        assert keys.shape == (4, 1, layer.length - 1, 8)
        for flat, whole in zip((keys, values), wanted, strict=True):
            assert torch.equal(flat.view(2, 2, -1, 8), whole[:, :, 1:])


def test_cropping_takes_recent_positions_and_then_quantised_ones() -> None:
    layer = layer_of(4)
    write(layer, 6)
    write(layer, 2, seed=1)
    before = layer.keys
    layer.crop(-1)
    assert (layer.length, layer.keys.shape[2]) == (7, 7)
    assert torch.equal(layer.keys, before[:, :, :7])
    layer.crop(4)
    assert torch.equal(layer.keys, before[:, :, :4])
    keys = write(layer, 1, seed=2)
    assert torch.equal(keys[:, :, :4], before[:, :, :4])
    assert torch.equal(keys[:, :, 4:], states([2, 2, 1, 8], 2))
    layer.crop(-100)
    assert (layer.length, layer.is_initialized) == (0, False)
    assert torch.equal(write(layer, 3, rows=1), states([1, 2, 3, 8], 0))


@pytest.mark.parametrize("name", ["quanto", "hqq"])
def test_rows_change_places_and_are_copied(name: str) -> None:
    layer = layer_of(4, name=name)
    write(layer, 5, rows=3)
    write(layer, 1, rows=3, seed=1)
    before = layer.keys
    layer.reorder_cache(torch.tensor([2, 0, 1]))
    layer.exchange(torch.tensor([0, 0, 2]), 5)
    assert torch.equal(layer.keys, before[[2, 2, 1]])
    layer.batch_repeat_interleave(2)
    layer.reorder_cache(torch.tensor([5, 0]))
    assert torch.equal(layer.keys, before[[1, 2]])
    # And it goes on with as many rows: what is quantised anew is what was there.
    for seed in range(4):
        keys = write(layer, 1, seed=seed)
    assert keys.shape[:3] == (2, 2, 10)
    torch.testing.assert_close(layer.keys[:, :, :5], before[[1, 2]][:, :, :5], atol=0.2, rtol=0)
    layer.reset()
    assert (layer.length, layer.keys) == (0, None)
    layer.batch_repeat_interleave(3)
    layer.reorder_cache(torch.tensor([0]))  # of nothing


def test_other_rows_or_another_dtype_are_refused() -> None:
    layer = layer_of()
    write(layer, 3)
    with pytest.raises(InvalidRequestError, match="cache of 2 rows"):
        write(layer, 1, rows=3)
    with pytest.raises(InvalidRequestError, match=r"cache of torch\.float32"):
        layer.update(*[states([2, 2, 1, 8], 0).half()] * 2)


def test_numbers_are_read_in_the_dtype_of_the_settings() -> None:
    exact, half = layer_of(), layer_of(compute_dtype=torch.float16, storage_device="cpu")
    for layer in (exact, half):
        write(layer, 5)
    assert half.keys.dtype is torch.float32
    assert torch.equal(half.keys, exact.keys.half().float())
    assert not torch.equal(half.keys, exact.keys)
