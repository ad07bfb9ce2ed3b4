"""Operations on both parts of an encoder-decoder cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYERS = 2


def pair(length: int, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer."""
    return torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4)


def filled() -> tuple[EncoderDecoderCache, Sequence[tuple[torch.Tensor, ...]]]:
    """A cache of five decoder and seven encoder positions, and what was written."""
    layers = [(*pair(5), *pair(7)) for _ in range(LAYERS)]
    return EncoderDecoderCache.from_legacy_cache(layers), layers


def same(cache: EncoderDecoderCache, layers: Sequence[tuple[torch.Tensor, ...]]) -> None:
    found = cache.to_legacy_cache()
    assert len(found) == len(layers)
    for ours, expected in zip(found, layers, strict=True):
        assert len(ours) == len(expected)
        for one, other in zip(ours, expected, strict=True):
            assert torch.equal(one, other)


def test_legacy_and_back() -> None:
    cache, layers = filled()
    same(cache, layers)
    same(EncoderDecoderCache(iter(layers)), layers)
    assert isinstance(cache, Cache)
    assert len(cache) == LAYERS
    assert cache.get_seq_length() == 5
    assert cache.cross_attention_cache.get_seq_length(1) == 7
    assert cache.is_updated == {0: True, 1: True}


def test_the_decoder_alone() -> None:
    layers = [pair(5) for _ in range(LAYERS)]
    cache = EncoderDecoderCache.from_legacy_cache(layers)
    same(cache, layers)
    assert cache.is_updated == {0: False, 1: False}


def test_parts_stay_the_callers() -> None:
    own, cross = DynamicCache(), DynamicCache()
    cache = EncoderDecoderCache(own, cross)
    cache.update(*pair(3), 0)
    assert cache.self_attention_cache is own and own.get_seq_length() == 3
    assert cache.cross_attention_cache is cross and cross.get_seq_length() == 0
    assert "positions=3" in repr(cache)


@pytest.mark.parametrize("rows", [[2, 2, 0], [0, 1, 2]])
def test_rows_move_in_both(rows: list[int]) -> None:
    for method in ("reorder_cache", "batch_select_indices"):
        cache, layers = filled()
        getattr(cache, method)(torch.tensor(rows))
        same(cache, [tuple(part[rows] for part in layer) for layer in layers])


def test_rows_are_repeated_in_both() -> None:
    cache, layers = filled()
    cache.batch_repeat_interleave(2)
    same(cache, [tuple(part.repeat_interleave(2, dim=0) for part in layer) for layer in layers])


@pytest.mark.parametrize("length", [2, -3])
def test_cropping_leaves_the_encoder_alone(length: int) -> None:
    cache, layers = filled()
    cache.crop(length)
    same(cache, [(*(part[:, :, :2] for part in layer[:2]), *layer[2:]) for layer in layers])


def test_reset_forgets_both() -> None:
    cache, _ = filled()
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.is_updated == {0: False, 1: False}


def test_cache_without_arguments_is_empty() -> None:
    assert EncoderDecoderCache().get_seq_length() == 0
    assert EncoderDecoderCache.from_legacy_cache().to_legacy_cache() == ()


@pytest.mark.parametrize(
    "caches",
    [
        (DynamicCache(),),
        (DynamicCache(), 3),
        (DynamicCache(), DynamicCache(), DynamicCache()),
        ([pair(1) + pair(1)[:1]],),
    ],
)
def test_anything_else_is_refused(caches: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRequestError):
        EncoderDecoderCache(*caches)


def test_exchanging_rows_is_the_decoders_affair() -> None:
    own, cross = torch.randn(2, 3, 1, 4, 2), torch.randn(2, 3, 1, 5, 2)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    cache.self_attention_cache.update(own[0], own[1], 0)
    cache.cross_attention_cache.update(cross[0], cross[1], 0)
    rows = torch.tensor([1, 1, 0])
    cache.exchange_rows(rows, 0)
    keys, values, *others = cache[0]
    assert torch.equal(torch.stack((keys, values)), own[:, rows])
    assert torch.equal(torch.stack(others), cross)
