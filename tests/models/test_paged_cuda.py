"""Fused attention over pages: its inputs on any machine, the kernel itself on a CUDA device."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncgen.cache.paged import PagedStorage
from asyncgen.models.paged import PagedAttention
from asyncgen.models.paged_cuda import FusedKernel, find_fused_kernel
from tests.models.test_paged import VARIANTS, alone, close, make_rows, model, run


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
) -> Tensor:
    """What `varlen_attn` is documented to do, one row at a time."""
    results = []
    assert window_size[1] == 0
    queries = cu_seq_q.tolist()
    for row, (first, end) in enumerate(zip(queries, queries[1:], strict=False)):
        if block_table is None:
            assert cu_seq_k is not None
            keys, values = (part[cu_seq_k[row] : cu_seq_k[row + 1]] for part in (key, value))
        else:
            assert seqused_k is not None
            used = int(seqused_k[row])
            pages = block_table[row].long()
            keys, values = (part[pages].flatten(0, 1)[:used] for part in (key, value))
        assert end - first <= max_q and len(keys) <= max_k
        group = query.shape[1] // keys.shape[1]
        assert enable_gqa == (group > 1)
        keys, values = (part.repeat_interleave(group, 1).transpose(0, 1) for part in (keys, values))
        own = query[first:end].transpose(0, 1)
        scores = own @ keys.transpose(1, 2) * (own.shape[2] ** -0.5 if scale is None else scale)
        at = torch.arange(end - first)[:, None] + keys.shape[1] - (end - first)
        distance = at - torch.arange(keys.shape[1])
        hidden = distance < 0
        if window_size[0] >= 0:
            hidden |= distance > window_size[0]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        results.append((weights @ values).transpose(0, 1))
    return torch.cat(results)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("reads_pages", [False, True])
def test_fused_rows_equal_each_text_alone(
    variant: str, reads_pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FusedKernel(written_out, reads_pages)
    monkeypatch.setattr("asyncgen.models.paged_torch.find_fused_kernel", lambda *_: kernel)
    core = model(variant)
    storage = PagedStorage(core.config, 60, 8, heads_first=False)
    rows = make_rows([30, 1, 17, 40], 8, random.Random(3).sample(range(60), 60))
    results = run(core, PagedAttention(core.config, storage), rows, random.Random(5))
    for row, result in zip(rows, results, strict=True):
        close(result, alone(core, row.ids))


def test_what_deviates_or_fails_on_trial_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    config = model("llama").config
    storage = PagedStorage(config, 4, 8, dtype=torch.bfloat16, heads_first=False)
    asked: list[bool] = []

    def only_gathered(*args: Any, **options: Any) -> Tensor:
        asked.append("block_table" in options)
        if "block_table" in options:
            raise RuntimeError("not with pages")
        return written_out(*args, **options)

    module = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(module, "varlen_attn", only_gathered)
    kernel = find_fused_kernel(config, storage)
    assert kernel == FusedKernel(only_gathered, False)
    assert asked == [True, False]
    monkeypatch.setattr(module, "varlen_attn", lambda *a, **o: -only_gathered(*a, **o))
    assert find_fused_kernel(config, storage) is None
    assert find_fused_kernel(config, PagedStorage(config, 4, 8)) is None


@pytest.mark.cuda
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("fused", [False, True])
def test_a_cuda_device_gives_what_a_cpu_gives(
    variant: str, page_size: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr("asyncgen.models.paged_torch.find_fused_kernel", lambda *_: None)
    lengths = [30, 1, 17, 300]
    core = model(variant, max_position_embeddings=512)
    expected = [alone(core, row.ids) for row in make_rows(lengths, page_size, list(range(60)))]
    core = core.to("cuda", torch.bfloat16)
    storage = PagedStorage(core.config, 60, page_size, device="cuda", dtype=torch.bfloat16)
    rows = make_rows(lengths, page_size, random.Random(3).sample(range(60), 60))
    for row in rows:
        row.ids = row.ids.cuda()
    results = run(core, PagedAttention(core.config, storage), rows, random.Random(5), most=100)
    for result, wanted in zip(results, expected, strict=True):
        deviation = (result.float().cpu() - wanted).abs().max().item()
        assert deviation < 0.15 * wanted.std().item()
