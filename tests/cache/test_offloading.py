"""Layers that lie elsewhere hand out tensors on the device of the keys that come in."""

from __future__ import annotations

import pytest
import torch

from asyncgen.cache.layers import DynamicLayer, StaticLayer
from asyncgen.cache.offloading import OffloadedLayer, OffloadedStaticLayer


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
