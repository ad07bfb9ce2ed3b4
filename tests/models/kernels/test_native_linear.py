"""Products by our own kernels: right, and the same for a row in any company."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F

from asyncgen import native
from asyncgen.models.kernels.native_linear import NativeKernel, fits
from asyncgen.models.kernels.norm import make_scaler

pytestmark = pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")

SIZES = [(1, 32), (31, 64), (32, 32), (33, 96), (100, 160), (192, 576)]
DTYPES = [torch.float32, torch.bfloat16]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    loose = found.dtype == torch.bfloat16
    torch.testing.assert_close(
        found.double(), expected, atol=0.05 if loose else 1e-4, rtol=0.01 if loose else 1e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out", "into"), SIZES)
@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 16, 17, 32, 33, 70, 300])
def test_products(out: int, into: int, rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    weight = (torch.randn(out, into) / into**0.5).to(dtype)
    bias = torch.randn(out).to(dtype)
    x = torch.randn(rows, into).to(dtype)
    expected = x.double() @ weight.double().T
    plain, shifted = NativeKernel(weight, None), NativeKernel(weight, bias)
    close(plain.product(x), expected)
    close(shifted.product(x), expected + bias.double())
    residual = torch.ones(rows, out, dtype=dtype)
    shifted.add_to(residual, x)
    close(residual, expected + bias.double() + 1)
    assert torch.equal(plain.dense(), weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 15, 16, 17, 80])
def test_gates(width: int, dtype: torch.dtype) -> None:
    weight = (torch.randn(2 * width, 64) / 4).to(dtype)
    bias = torch.randn(2 * width).to(dtype)
    x = torch.randn(5, 64).to(dtype)
    gate, up = (x.double() @ weight.double().T + bias.double()).chunk(2, dim=1)
    kernel = NativeKernel(weight, bias, True)
    out = torch.empty(5, width, dtype=dtype)
    assert kernel.into(x, out) is out
    close(out, F.silu(gate) * up)
    assert torch.equal(kernel.product(x), out)
    assert torch.equal(kernel.dense(), weight)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, -80.0, -120.0, 80.0, 120.0, 1e30, -1e30])
def test_silu_of_any_size(value: float) -> None:
    kernel = NativeKernel(torch.ones(2, 32), None, True)
    x = torch.full((1, 32), value / 32)
    total = x.sum(1, keepdim=True)
    torch.testing.assert_close(kernel.product(x), F.silu(total) * total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("runs", ["as installed", "without tiles"])
def test_a_row_is_the_same_in_any_company(
    dtype: torch.dtype, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runs == "without tiles" and native.kernels is not None:
        features = native.kernels.features() | {"amx_bf16": False}
        monkeypatch.setattr(native.kernels, "features", lambda: features)
    kernel = NativeKernel(torch.randn(96, 160).to(dtype), None)
    x = torch.randn(300, 160).to(dtype)
    together = kernel.product(x)
    close(together, x.double() @ kernel.dense().double().T)
    for count in (1, 2, 5, 12, 16, 19, 32, 40):
        for first in (0, 37, 300 - count):
            part = slice(first, first + count)
            assert torch.equal(kernel.product(x[part]), together[part])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_stays_in_its_row(dtype: torch.dtype) -> None:
    kernel = NativeKernel(torch.randn(64, 64).to(dtype), None)
    x = torch.randn(20, 64).to(dtype)
    clean = kernel.product(x)
    x[7], x[18] = torch.nan, torch.inf
    found = kernel.product(x)
    assert found[7].isnan().all()
    assert not found[18].isfinite().any()
    others = [row for row in range(20) if row not in (7, 18)]
    assert torch.equal(found[others], clean[others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows(dtype: torch.dtype) -> None:
    kernel = NativeKernel(torch.randn(64, 64).to(dtype), None)
    wide = torch.randn(9, 200).to(dtype)
    inner = wide[:, 3:67]
    assert torch.equal(kernel.product(inner), kernel.product(inner.contiguous()))
    columns = torch.randn(64, 9).to(dtype).t()
    assert torch.equal(kernel.product(columns), kernel.product(columns.contiguous()))
    out = torch.zeros(9, 100, dtype=dtype)
    kernel.into(inner, out[:, 10:74])
    assert torch.equal(out[:, 10:74], kernel.product(inner))
    assert not out[:, :10].any()
    assert not out[:, 74:].any()


@pytest.mark.parametrize("is_gated", [False, True])
def test_copies(is_gated: bool) -> None:
    kernel = NativeKernel(torch.randn(40, 64), torch.randn(40), is_gated)
    x = torch.randn(3, 64)
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(twin.product(x), kernel.product(x))


def test_what_fits() -> None:
    assert fits(torch.float32, 7)
    assert not fits(torch.bfloat16, 48)
    assert not fits(torch.float64, 64)
    assert not fits(torch.float16, 64)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 64, dtype=torch.float64),
        torch.randn(3, 64, dtype=torch.bfloat16),
        torch.randn(3, 63),
        torch.randn(3, 64, device="meta"),
    ],
)
def test_rows_that_do_not_fit_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="this weight takes"):
        NativeKernel(torch.randn(8, 64), None).product(x)
    with pytest.raises(ValueError, match="this norm takes"):
        make_scaler(torch.ones(64), 64, 1e-6).into(x, torch.empty(3, 64))
