"""The choice of a kernel for a weight, and the weight afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen import native
from asyncgen.models.kernels import products as kernels

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute as on a machine without our own kernels."""
    monkeypatch.setattr(native, "kernels", None)


@pytest.fixture(params=[False, True], ids=["other", "intel"])
def is_intel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run as on both kinds of processors, on any."""
    monkeypatch.setattr(kernels, "has_intel_kernels", lambda: request.param)
    return bool(request.param)


def test_a_float32_weight_stays_where_it_lies(is_intel: bool) -> None:
    for out, on_intel in ((8, kernels.InPlaceKernel), (96, kernels.DenseKernel)):
        weight = torch.randn(out, 200)
        kernel = kernels.choose_kernel(weight, None)
        assert type(kernel) is (on_intel if is_intel else kernels.PlainKernel)
        assert kernel.dense().data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    ("dtype", "out", "into", "threads", "is_chunked"),
    [
        (torch.float32, 96, 10_923, 1, True),
        (torch.float32, 96, 10_922, 1, False),  # too small
        (torch.float32, 96, 10_923, 2, False),  # one chunk for two threads
        (torch.float32, 384, 4096, 2, True),
        (torch.float32, 128, 10_000, 1, False),  # not divided
        (torch.bfloat16, 96, 10_923, 1, False),
        (torch.float64, 96, 10_923, 1, False),
    ],
)
def test_choose_kernel_picks_the_weight_layout(
    monkeypatch: pytest.MonkeyPatch,
    is_intel: bool,
    dtype: torch.dtype,
    out: int,
    into: int,
    threads: int,
    is_chunked: bool,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    kernel = kernels.choose_kernel(torch.randn(out, into, dtype=dtype), None)
    is_chunked = is_chunked and is_intel
    assert isinstance(kernel, kernels.ChunkedKernel) is is_chunked
    is_packed = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert isinstance(kernel, kernels.PackedKernel) is is_packed
    assert kernels.needs_other_layout(dtype, out, into) is (is_chunked or is_packed)


@pytest.mark.parametrize(
    ("maker", "mkl", "expected"),
    [
        ("GenuineIntel", True, True),
        ("AuthenticAMD", True, False),
        ("GenuineIntel", False, False),
    ],
)
def test_intel_processor_with_mkl_is_recognized(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, maker: str, mkl: bool, expected: bool
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(kernels, "CPU_INFO", tmp_path / "cpuinfo")
    ask = kernels.has_intel_kernels.__wrapped__
    assert ask() is expected
    monkeypatch.setattr(kernels, "CPU_INFO", tmp_path / "absent")
    monkeypatch.setattr("platform.processor", lambda: f"Family 6, {maker}")
    assert ask() is expected
