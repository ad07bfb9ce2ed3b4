"""Products by our own kernels: right, and the same for a row in any company."""

from __future__ import annotations

import copy
import math
import pickle
from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn import functional as F

from asyncgen import native
from asyncgen.models.kernels import native_linear
from asyncgen.models.kernels.native_linear import ACTIVATED, GATES, NativeKernel, widens
from asyncgen.models.kernels.norm import make_scaler
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

pytestmark = pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")

SIZES = [(1, 32), (31, 64), (32, 33), (33, 48), (5, 1), (64, 79), (100, 160), (192, 576)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    near = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (0.05, 0.01), torch.float16: (1e-3, 1e-3)}
    atol, rtol = near[found.dtype]
    torch.testing.assert_close(found.double(), expected, atol=atol, rtol=rtol)


@for_each("dtype", DTYPES)
@for_each(("out", "into"), SIZES)
@for_each("rows", [1, 2, 11, 12, 13, 16, 17, 32, 33, 70, 300])
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


@for_each("dtype", DTYPES)
@for_each("width", [1, 15, 16, 17, 80])
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


ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def test_the_formulas_are_of_all_activations() -> None:
    assert tuple(ACTS) == ACTIVATED


@for_each("dtype", DTYPES)
@for_each("activation", ACTIVATED)
def test_a_product_comes_with_its_activation(activation: str, dtype: torch.dtype) -> None:
    weight = (torch.randn(70, 64) / 4).to(dtype)
    bias = torch.randn(70).to(dtype)
    x = torch.randn(5, 64).to(dtype)
    expected = x.double() @ weight.double().T + bias.double()
    kernel = NativeKernel(weight, bias, activation=activation)
    close(kernel.product(x), ACTS[activation](expected))
    assert torch.equal(kernel.dense(), weight)
    with pytest.raises(ValueError, match="cannot be added"):
        kernel.add_to(torch.zeros(5, 70, dtype=dtype), x)
    if activation in GATES:
        gate, up = expected.chunk(2, dim=1)
        close(
            NativeKernel(weight, bias, True, activation=activation).product(x),
            ACTS[activation](gate) * up,
        )


@pytest.mark.parametrize("is_gated", [False, True])
def test_other_activations_are_refused(is_gated: bool) -> None:
    with pytest.raises(ValueError, match="is 'clamped' and must be"):
        NativeKernel(torch.randn(64, 32), None, is_gated, activation="clamped")


@for_each("activation", ACTIVATED)
def test_nan_stays_nan_after_an_activation(activation: str) -> None:
    kernel = NativeKernel(torch.ones(1, 1), None, activation=activation)
    assert kernel.product(torch.full((1, 1), torch.nan)).isnan().all()


@for_each("value", [0.0, -0.0, 1e-30, -80.0, -120.0, 80.0, 120.0, 1e30, -1e30])
def test_silu_of_any_size(value: float) -> None:
    kernel = NativeKernel(torch.ones(2, 32), None, True)
    x = torch.full((1, 32), value / 32)
    total = x.sum(1, keepdim=True)
    torch.testing.assert_close(kernel.product(x), F.silu(total) * total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("runs", ["as installed", "without tiles"])
def test_rows_do_not_depend_on_other_rows(
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


@for_each("dtype", DTYPES)
def test_nan_and_infinity_stay_in_their_row(dtype: torch.dtype) -> None:
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
def test_no_rows_have_no_products(dtype: torch.dtype) -> None:
    kernel = NativeKernel(torch.randn(64, 64).to(dtype), None)
    assert kernel.product(torch.empty(0, 64, dtype=dtype)).shape == (0, 64)


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
    kernel = NativeKernel(torch.randn(40, 64), torch.randn(40), is_gated, activation="gelu")
    x = torch.randn(3, 64)
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(twin.product(x), kernel.product(x))


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


@for_each("inputs", [1, 15, 31, 33, 48, 688])
def test_memory_after_a_row_is_not_read(inputs: int) -> None:
    weight = torch.randn(40, inputs).bfloat16()
    wide = torch.full((20, inputs + 40), torch.nan).bfloat16()
    wide[:, :inputs] = torch.randn(20, inputs)
    x = wide[:, :inputs]
    kernel = NativeKernel(weight, None)
    close(kernel.product(x), x.double() @ weight.double().T)
    assert torch.equal(kernel.product(x[:1]), kernel.product(x.contiguous())[:1])


WIDENED = [torch.bfloat16, torch.float16]


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare to the last bit, the sign of zero too; any NaN equals any other."""
    assert found.dtype == expected.dtype == torch.float32
    assert torch.equal(found.isnan(), expected.isnan())
    known = ~expected.isnan()
    assert torch.equal(found[known].view(torch.int32), expected[known].view(torch.int32))


@pytest.fixture
def surrounded(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Panels lie in memory that is full of NaN, which is listed here."""
    lying: list[torch.Tensor] = []

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        lying.append(torch.full((math.prod(shape) + 8192,), torch.nan, dtype=dtype))
        return lying[-1][4096:-4096].view(shape)

    monkeypatch.setattr(native_linear, "empty_weight", empty)
    return lying


def within_nan(rows: int, columns: int) -> torch.Tensor:
    """Rows ``[rows, columns]`` with NaN before, between and behind them."""
    return torch.full((rows + 2, columns + 3), torch.nan)[1:-1, 1:-2]


@pytest.mark.parametrize("stored", WIDENED)
@pytest.mark.parametrize(
    ("out", "into", "numbers"),
    [(1, 1, [1, 13]), (31, 7, [2, 24]), (32, 32, [12, 37]), (33, 65, range(1, 41))],
)
def test_a_weight_of_16_bits_gives_what_it_gives_in_float32(
    out: int,
    into: int,
    numbers: Iterable[int],
    stored: torch.dtype,
    surrounded: list[torch.Tensor],
) -> None:
    torch.manual_seed(out)
    weight, bias = torch.randn(out, into).to(stored), torch.randn(out)
    kernel = NativeKernel(weight, bias, dtype=torch.float32)
    assert [one.dtype for one in surrounded] == [stored]
    wide = NativeKernel(weight.float(), bias)
    for rows in numbers:
        x = within_nan(rows, into).copy_(torch.randn(rows, into))
        frame = torch.full((rows + 2, out + 3), torch.nan)
        results, expected = frame[1:-1, 1:-2], wide.product(x)
        same_bits(kernel.into(x, results), expected)
        kernel.add_to(results, x)
        wide.add_to(expected, x)
        same_bits(results, expected)
        assert frame.isnan().sum() == frame.numel() - rows * out  # nothing else was written


@pytest.mark.parametrize("stored", WIDENED)
@pytest.mark.parametrize("width", [1, 15, 16, 17, 80])
def test_gates_of_16_bits(width: int, stored: torch.dtype, surrounded: list[torch.Tensor]) -> None:
    weight = torch.randn(2 * width, 33).to(stored)
    kernel = NativeKernel(weight, None, True, torch.float32)
    assert [one.dtype for one in surrounded] == [stored]
    for rows in (1, 5, 40):
        x = torch.randn(rows, 33)
        same_bits(kernel.product(x), NativeKernel(weight.float(), None, True).product(x))
    assert torch.equal(kernel.dense(), weight)


@pytest.mark.parametrize("stored", WIDENED)
def test_every_number_of_16_bits_is_widened_exactly(stored: torch.dtype) -> None:
    weight = torch.arange(-(2**15), 2**15).to(torch.int16).view(stored)[:, None]
    kernel = NativeKernel(weight, None, dtype=torch.float32)
    found, x = kernel.product(torch.ones(1, 1)), torch.ones(3, 1)
    same_bits(found, NativeKernel(weight.float(), None).product(torch.ones(1, 1)))
    same_bits(kernel.product(x), found.expand(3, -1))
    exact = weight.float().flatten()
    torch.testing.assert_close(found[0], exact, atol=0, rtol=0, equal_nan=True)
    assert ((found[0] != 0) == (exact != 0)).all()  # the smallest are not lost
    assert kernel.dense().view(torch.int16).equal(weight.view(torch.int16))


@pytest.mark.parametrize("stored", WIDENED)
@pytest.mark.parametrize("is_gated", [False, True])
def test_copies_stay_in_16_bits(
    is_gated: bool, stored: torch.dtype, surrounded: list[torch.Tensor]
) -> None:
    kernel = NativeKernel(torch.randn(40, 64).to(stored), torch.randn(40), is_gated, torch.float32)
    x = torch.randn(3, 64)
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        same_bits(twin.product(x), kernel.product(x))
        assert twin.dense().dtype == stored
    assert [one.dtype for one in surrounded] == [stored] * 3


def test_only_half_precision_weights_widen_to_float32() -> None:
    for stored in WIDENED:
        assert widens(stored, torch.float32)
        assert not any(widens(stored, other) for other in (*WIDENED, torch.float64))
    assert not widens(torch.float32, torch.float32)
    assert not widens(torch.float64, torch.float32)
