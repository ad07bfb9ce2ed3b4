"""The choice of torch's kernels for the rows of a step, on any machine."""

from __future__ import annotations

import random

import pytest
import torch

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.decode import DecodeRows
from asyncgen.models.attention.paged.prefill import PrefillRows
from asyncgen.models.attention.paged.torch_attention import TorchAttention
from tests.models.packing import Row, make_rows, model, run


@pytest.mark.parametrize("few", [0, 512])
def test_bfloat16_is_near_float32(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgen.models.attention.paged.torch_attention.FEW_SHORT_TOKENS", few)
    rows: list[list[Row]] = []
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        core = model("llama", dtype)
        storage = PagedStorage(core.config, 40, 8, dtype=dtype)
        rows.append(make_rows([30, 12, 7], 8, list(range(39, 0, -1))))
        results.append(run(core, TorchAttention(core.config, storage), rows[-1], random.Random(1)))
    for one, other in zip(*results, strict=True):
        spread = one.std().item()
        assert (one - other.float()).abs().max().item() < 0.15 * spread


def test_single_tokens_and_chunks_are_computed_apart() -> None:
    core = model("llama")
    attention = TorchAttention(core.config, PagedStorage(core.config, 9, 8))
    ids = torch.zeros(20, dtype=torch.int64)
    chunk, token = Row(ids, [0, 1, 2], 2, 18), Row(ids, [3, 4, 5], 19, 1)
    attention.lay_out([token, chunk])
    assert [type(part) for part in attention._parts[0]] == [DecodeRows, PrefillRows]
    attention.lay_out([token])
    assert 0 in attention._only and not attention._parts, "no padded batch"
