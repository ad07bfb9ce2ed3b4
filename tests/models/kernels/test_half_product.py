"""Weights that torch's FBGEMM multiplies in float16: the same numbers, or not at all."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from asyncgen import native
from asyncgen.models.kernels import half_product, products
from asyncgen.models.kernels.half_product import (
    HalfKernel,
    half_bytes,
    half_shift,
    supports_half_product,
)
from asyncgen.models.kernels.linear import Linear, half_head_pays

if not supports_half_product():
    pytest.skip("torch has no product with weights in float16 here", allow_module_level=True)


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", None)
    monkeypatch.setattr(products, "has_intel_kernels", lambda: False)
    torch.manual_seed(0)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 33, 130])
@pytest.mark.parametrize(("out", "into"), [(16, 256), (33, 1000), (96, 576)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_the_weight_in_float32(
    rows: int, out: int, into: int, has_bias: bool
) -> None:
    weight, bias = torch.randn(out, into).bfloat16() * 0.02, torch.randn(out) if has_bias else None
    kernel = products.choose_kernel(weight, bias, dtype=torch.float32)
    assert isinstance(kernel, HalfKernel)
    assert torch.equal(kernel.dense(), weight.float())
    x = torch.randn(rows, into)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias)
    residual, buffer = torch.ones(rows, out), torch.empty(rows, out)
    kernel.add_to(residual, x)
    assert kernel.into(x, buffer) is buffer
    for found in (kernel.product(x), buffer, residual - 1):
        torch.testing.assert_close(found, exact.float(), atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("power", [-40, -10, 0, 10, 40])
def test_a_weight_of_any_size_is_moved_to_where_it_fits(power: int) -> None:
    weight = torch.randn(48, 300).bfloat16().float() * 2.0**power
    weight[3, 4] = 0.0
    kernel = products.choose_kernel(weight, None)
    assert isinstance(kernel, HalfKernel)
    assert torch.equal(kernel.dense(), weight)
    x = torch.randn(2, 300)
    expected = (x.double() @ weight.double().T).float()
    torch.testing.assert_close(kernel.product(x), expected, atol=1e-5 * 2.0**power, rtol=1e-5)


@pytest.mark.parametrize("broken", [1 + 2.0**-12, 2.0**-38, 3e38, torch.inf, torch.nan])
def test_a_weight_with_a_number_that_does_not_fit_stays_as_it_is(broken: float) -> None:
    weight = torch.randn(2000, 600).bfloat16().float()
    assert half_shift(weight) is not None
    weight[1999, 599] = broken
    assert half_shift(weight) is None
    kernel = products.choose_kernel(weight, None)
    assert kernel.dense().data_ptr() == weight.data_ptr()


def test_a_weight_that_takes_more_memory_packed_stays_as_it_is() -> None:
    assert half_bytes(16, 256) == 16 * 512 * 2
    assert half_bytes(17, 513) == 32 * 1024 * 2
    for out, into, fits in ((16, 256, True), (16, 255, False), (8, 512, True), (7, 512, False)):
        assert (half_shift(torch.randn(out, into).bfloat16()) is not None) is fits


def test_half_shift_of_zero_or_tiny_weights() -> None:
    assert half_shift(torch.zeros(16, 256)) == 0
    assert half_shift(torch.empty(0, 256)) is None
    assert half_shift(torch.full((16, 256), 2.0**-120)) is None  # further than is moved


def test_the_weight_that_was_packed_is_left_as_it_was() -> None:
    weight = (torch.randn(32, 300) * 1e6).bfloat16().float()
    before = weight.clone()
    assert isinstance(products.choose_kernel(weight, None), HalfKernel)
    assert torch.equal(weight, before)


def test_a_table_that_others_keep_in_float32_is_not_copied() -> None:
    table = torch.randn(40, 400).bfloat16()
    for its, is_copied in ((table, True), (table.float(), False)):
        layer = Linear(400, 40)
        layer.weight = None
        layer.tie(its, own_copy=True)
        assert isinstance(layer.kernel, HalfKernel) is is_copied


def test_rows_of_nan_stay_alone() -> None:
    kernel = products.choose_kernel(torch.randn(64, 512).bfloat16().float(), None)
    x = torch.randn(9, 512)
    x[4] = torch.nan
    assert kernel.product(x).isnan().all(1).tolist() == [row == 4 for row in range(9)]


def test_copies_and_pickles_compute_alike() -> None:
    kernel = products.choose_kernel(torch.randn(48, 300).half().float(), torch.randn(48))
    x = torch.randn(3, 300)
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert isinstance(other, HalfKernel)
        assert torch.equal(other.product(x), kernel.product(x))


def test_without_the_product_weights_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_product, "_multiply", lambda: None)
    weight = torch.randn(16, 512).bfloat16().float()
    assert not products.prefers_half_product(torch.float32)
    assert not isinstance(products.choose_kernel(weight, None), HalfKernel)
    assert half_shift(weight) is None


@pytest.mark.parametrize("engine", torch.backends.quantized.supported_engines)
def test_another_engine_of_quantised_products_is_no_error(
    engine: str,
) -> None:
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = engine
        found = half_shift(torch.randn(16, 512).bfloat16())
    finally:
        torch.backends.quantized.engine = before
    assert (found is not None) is (engine in ("x86", "fbgemm"))


def test_a_tied_head_is_copied_where_the_layers_save_as_much() -> None:
    def model(vocabulary: int) -> nn.Module:
        made = nn.Module()
        made.layer, made.lm_head = Linear(512, 1024), Linear(600, vocabulary)
        return made

    # The layer saves a million bytes of two; a head's outputs cost 2 * 1024 - 2 * 600 bytes each.
    assert half_head_pays(model(1232))
    assert not half_head_pays(model(1248))
    wide = model(16)
    wide.to(torch.float64)
    assert not half_head_pays(wide)
