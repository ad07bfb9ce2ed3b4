"""Pages: their size in bytes, their layout, and that unused ones take no memory."""

from __future__ import annotations

import psutil
import pytest
import torch

from asyncgen.cache.paged_storage import PagedStorage, page_bytes
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from tests.cases import for_each
from tests.models.build import random_config


def config(**overrides: int) -> ModelConfig:
    return ModelConfig.from_hf(random_config("llama", **overrides))


@for_each("dtype", [torch.float32, torch.bfloat16])
@for_each("page_size", [8, 16, 32])
def test_page_bytes_are_exact(dtype: torch.dtype, page_size: int) -> None:
    storage = PagedStorage(config(), 7, page_size, dtype=dtype)
    assert storage.nbytes == 7 * page_bytes(config(), page_size, dtype)
    assert page_bytes(config(), page_size, dtype) == 3 * 2 * 2 * 8 * page_size * dtype.itemsize


def test_unused_pages_take_no_memory() -> None:
    process = psutil.Process()
    large = config(num_hidden_layers=8, num_key_value_heads=6, head_dim=128)
    before = process.memory_info().rss
    storage = PagedStorage(large, 4096, 16)
    assert storage.nbytes == 3 << 30
    assert process.memory_info().rss - before < 32 << 20
    storage.clear(list(range(8)))
    # Eight pages at the most, in each of which the system may give more than was asked for.
    assert process.memory_info().rss - before < 96 << 20


def test_clearing_reaches_every_layer_and_no_other_page() -> None:
    storage = PagedStorage(config(), 5, 4)
    storage.data.fill_(torch.nan)
    storage.clear([3, 0])
    storage.clear([])
    assert (storage.data[:, :, [0, 3]] == 0).all()
    assert storage.data[:, :, [1, 2, 4]].isnan().all()


@pytest.mark.parametrize("heads_first", [False, True])
def test_the_views_are_of_one_memory(heads_first: bool) -> None:
    storage = PagedStorage(config(), 5, 4, heads_first=heads_first)
    page = (2, 4, 8) if heads_first else (4, 2, 8)
    assert storage.layers[1].shape == (2, 5, *page)
    storage.layers[1][0, 2] = 3
    assert (storage.data[1, 0, 2] == 3).all()
    keys, _ = storage.matrices[1]
    assert (keys.view(5, -1)[2] == 3).all()


@pytest.mark.parametrize("name", ["num_pages", "page_size"])
def test_sizes_below_one_are_refused(name: str) -> None:
    sizes = {"num_pages": 4, "page_size": 4, name: 0}
    with pytest.raises(InvalidRequestError, match=name):
        PagedStorage(config(), sizes["num_pages"], sizes["page_size"])
