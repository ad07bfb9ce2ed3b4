"""Caches of 8-bit floating point numbers and quantised layers, beside those of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import asyncgen
from asyncgen.errors import InvalidRequestError
from tests.cache.test_layer_classes import IDS, states
from tests.cases import for_each
from tests.generation.strategies.pairs import pair

if TYPE_CHECKING:
    from pathlib import Path

reference = pytest.importorskip("transformers.cache_utils")


@for_each("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_fp8_layer_stores_the_bytes_of_the_reference(dtype: torch.dtype) -> None:
    ours, theirs = asyncgen.Fp8QuantizedLayer(), reference.Fp8QuantizedLayer()
    for seed, size in enumerate((6, 1, 3)):
        most = 2 if seed else 99
        keys, values = states(size, seed).to(dtype) / 3, states(size, seed + 9).to(dtype) * 7
        new = keys.clamp(-most, most), values.clamp(-most, most)
        for mine, yours in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert mine.dtype is dtype
            assert torch.equal(mine, yours)
    keys, scale = theirs._quantized_keys
    assert ours.keys is not None
    assert torch.equal(ours.keys, (keys.float() * scale).to(dtype))
    ours.reorder_cache(torch.tensor([1, 1, 0]))
    ours.batch_repeat_interleave(2)
    ours.crop(-4)
    assert ours.keys is not None and ours.keys.shape == (6, 2, 6, 8)
    assert torch.equal(ours.keys[4], (keys.float() * scale).to(dtype)[0, :, :6])


def test_numbers_beyond_the_first_scale_become_the_largest() -> None:
    layer = asyncgen.Fp8QuantizedLayer()
    layer.update(torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8))
    keys, values = layer.update(torch.full((1, 1, 1, 8), 900.0), torch.full((1, 1, 1, 8), -9.0))
    assert keys[0, 0, 2].tolist() == pytest.approx([1.0] * 8)
    assert values[0, 0, 2].tolist() == pytest.approx([-1.0] * 8)


def test_generate_with_fp8_gives_the_tokens_of_the_reference(tmp_path: Path) -> None:
    theirs, ours = pair(tmp_path, 3)
    ids = torch.cat((IDS, IDS.flip(1)))
    ways: list[tuple[int, Any]] = [
        (1, lambda: {"past_key_values": asyncgen.QuantizedCache("fp8", ours.config)}),
        (2, lambda: {"past_key_values": asyncgen.QuantizedCache(backend="fp8")}),
        (1, lambda: {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}),
    ]
    for beams, way in ways:
        call: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams}
        cache = reference.QuantizedCache("fp8", theirs.config)
        expected = theirs.generate(ids, past_key_values=cache, **call)
        assert ours.generate(ids, **way(), **call).tolist() == expected.tolist()


def test_settings_of_groups_are_refused_for_fp8() -> None:
    given: dict[str, Any] = {"nbits": 8, "axis_key": 0, "q_group_size": 64}
    for name, value in given.items():
        with pytest.raises(InvalidRequestError, match=f"`{name}` is {value}: `fp8` has one scale"):
            asyncgen.QuantizedCache("fp8", None, **{name: value})
    changed = asyncgen.QuantizedCacheConfig(backend="fp8", residual_length=3)
    with pytest.raises(InvalidRequestError, match="`residual_length` is 3"):
        asyncgen.QuantizedCache(changed)
    asyncgen.QuantizedCache(asyncgen.QuantizedCacheConfig(backend="fp8"))


class Rounded(asyncgen.QuantizedLayer):
    """A user's own way to quantise."""

    def _quantize(self, tensor: Tensor, axis: int) -> Tensor:
        return (tensor * 2**self.nbits).round()

    def _dequantize(self, q_tensor: Tensor) -> Tensor:
        return q_tensor / 2**self.nbits


class TheirRounded(reference.QuantizedLayer):  # type: ignore[misc, name-defined]
    def _quantize(self, tensor: Any, axis: int) -> Any:
        return (tensor * 2**self.nbits).round()

    def _dequantize(self, qtensor: Any) -> Any:
        return qtensor / 2**self.nbits


@for_each("residual", [0, 2, 5])
def test_a_users_own_quantiser_is_called_as_in_the_reference(residual: int, tmp_path: Path) -> None:
    ours, theirs = (kind(3, residual_length=residual) for kind in (Rounded, TheirRounded))
    for seed, size in enumerate((5, 1, 1, 3, 1, 1)):
        if seed == 4:
            for layer in (ours, theirs):
                layer.reorder_cache(torch.tensor([1, 0]))
        new = states(size, seed), states(size, seed + 9)
        for mine, yours in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(mine, yours)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(2) == theirs.get_mask_sizes(2)
    other, model = pair(tmp_path / str(residual), 3)
    layers = [Rounded(1, residual_length=residual) for _ in range(3)]
    found = model.generate(IDS, max_new_tokens=20, past_key_values=asyncgen.Cache(layers=layers))
    layers = [TheirRounded(1, residual_length=residual) for _ in range(3)]
    expected = other.generate(IDS, max_new_tokens=20, past_key_values=reference.Cache(layers))
    assert found.tolist() == expected.tolist()


@for_each(
    ("kind", "wrong"),
    [
        (asyncgen.QuantoQuantizedLayer, {"nbits": 8}),
        (asyncgen.QuantoQuantizedLayer, {"axis_key": 1}),
        (asyncgen.HQQQuantizedLayer, {"nbits": 5}),
        (asyncgen.HQQQuantizedLayer, {"axis_value": -1}),
        (asyncgen.HQQQuantizedLayer, {"q_group_size": 0}),
    ],
)
def test_a_setting_that_is_none_of_a_layer_is_refused(kind: Any, wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidRequestError, match=f"`{name}`"):
        kind(**wrong)
