"""Fused attention over pages: its inputs on any machine, the kernel itself on a CUDA device."""

from __future__ import annotations

import random

import pytest
import torch

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.fused import FusedKernel
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from tests.doubles.varlen import varlen_attn
from tests.models.attention.paged.test_paged_attention import close
from tests.models.packing import VARIANTS, alone, make_rows, model, num_groups, run


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("reads_pages", [False, True])
def test_fused_rows_equal_each_text_alone(
    variant: str, reads_pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FusedKernel(varlen_attn, reads_pages, options={"enable_gqa": True})
    monkeypatch.setattr(
        "asyncgen.models.attention.paged.torch_attention.find_fused_kernel", lambda *_: kernel
    )
    core = model(variant)
    groups = num_groups(core)
    most = 60 * groups
    storage = PagedStorage(core.config, most, 8, heads_first=False)
    rows = make_rows([30, 1, 17, 40], 8, random.Random(3).sample(range(most), most), 0, groups)
    attention = PagedAttention(core.config, storage)
    results = run(core, attention, rows, random.Random(5), forgets=True)
    for row, result in zip(rows, results, strict=True):
        close(result, alone(core, row.ids))


@pytest.mark.cuda
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("fused", [False, True])
def test_a_cuda_device_gives_what_a_cpu_gives(
    variant: str, page_size: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr(
            "asyncgen.models.attention.paged.torch_attention.find_fused_kernel", lambda *_: None
        )
    lengths = [30, 1, 17, 300]
    core = model(variant, max_position_embeddings=512)
    expected = [alone(core, row.ids) for row in make_rows(lengths, page_size, list(range(60)))]
    core = core.to("cuda", torch.bfloat16)
    groups = num_groups(core)
    most = 60 * groups
    storage = PagedStorage(core.config, most, page_size, device="cuda", dtype=torch.bfloat16)
    rows = make_rows(lengths, page_size, random.Random(3).sample(range(most), most), 0, groups)
    for row in rows:
        row.ids = row.ids.cuda()
    attention = PagedAttention(core.config, storage)
    results = run(core, attention, rows, random.Random(5), most=100, forgets=True)
    for result, wanted in zip(results, expected, strict=True):
        deviation = (result.float().cpu() - wanted).abs().max().item()
        assert deviation < 0.15 * wanted.std().item()
