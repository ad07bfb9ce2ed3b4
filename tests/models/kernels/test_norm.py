"""The norm against its formula in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.families.plans.layer_plan import NormPlan
from asyncgen.models.kernels.norm import Norm, Scaler, make_centring
from tests.cases import for_each


def weight_of(norm: Norm) -> torch.Tensor:
    assert norm.weight is not None
    return norm.weight


def formula(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    features=st.sampled_from([2, 16, 100, 576]),
    scale=st.sampled_from([0.0, 1e-4, 0.02, 1.0, 1e3]),
    eps=st.sampled_from([1e-6, 1e-5]),
    seed=st.integers(0, 99),
)
def test_it_equals_the_formula(
    rows: int, features: int, scale: float, eps: float, seed: int
) -> None:
    torch.manual_seed(seed)
    norm = Norm(features, eps, dtype=torch.float32)
    weight_of(norm).copy_(torch.randn(features))
    x = torch.randn(rows, features) * scale
    expected = formula(x, weight_of(norm), eps).float()
    torch.testing.assert_close(norm(x), expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("heads", [None, 3])
def test_a_norm_without_weights_takes_rows_of_any_dtype(heads: int | None) -> None:
    norm = Norm(16, 1e-5, NormPlan(has_weight=False), heads=heads)
    for dtype, near in ((torch.float32, 2e-6), (torch.bfloat16, 0.02), (torch.float64, 1e-12)):
        x = torch.randn(5, heads or 1, 16, dtype=dtype)
        expected = formula(x, torch.ones(16), 1e-5).to(dtype)
        found = norm.scaler.into(x, torch.empty_like(x))
        torch.testing.assert_close(found, expected, rtol=near, atol=near)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3])
def test_short_dtypes_round_only_at_the_end(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    norm = Norm(576, 1e-5, dtype=dtype)
    weight_of(norm).copy_(torch.randn(576))
    x = torch.randn(rows, 576).to(dtype)
    expected = formula(x, weight_of(norm), 1e-5)
    # Two roundings: of the quotient and of the product.
    error = (norm(x).double() - expected).abs() / expected.abs()
    assert error.max() < 1.1 * torch.finfo(dtype).eps


def test_it_works_in_place() -> None:
    norm = Norm(8, 1e-5, dtype=torch.float32)
    weight_of(norm).fill_(1)
    x = torch.randn(2, 8)
    expected = norm(x)
    assert norm.scaler.into(x, x) is x
    assert torch.equal(x, expected)


def test_weights_side_by_side_equal_one_norm_each() -> None:
    x, weights = torch.randn(2, 3, 8), torch.randn(3, 8)
    together = Scaler(weights, 8, 1e-5, torch.float32).into(x, torch.empty_like(x))
    for head in range(3):
        alone = Scaler(weights[head], 8, 1e-5, torch.float32).into(x[:, head], torch.empty(2, 8))
        torch.testing.assert_close(together[:, head], alone, rtol=1e-6, atol=1e-6)


def test_a_new_weight_counts_once_it_is_prepared() -> None:
    norm = Norm(8, 1e-5, dtype=torch.float32)
    weight_of(norm).fill_(1)
    x = torch.randn(1, 8)
    before = norm(x)
    weight_of(norm).fill_(2)
    norm.prepare()
    torch.testing.assert_close(norm(x), 2 * before)


def test_it_follows_a_change_of_dtype() -> None:
    norm = Norm(8, 1e-5, dtype=torch.float32)
    norm.prepare()
    norm.to(torch.bfloat16)
    assert norm(torch.ones(1, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@for_each("prepared", [False, True])
@for_each("features", [2, 16, 24, 100])
def test_a_norm_by_layer_equals_its_formula(features: int, prepared: bool) -> None:
    torch.manual_seed(0)
    norm = Norm(features, 1e-3, NormPlan("layer", has_bias=True), dtype=torch.float32)
    weight_of(norm).copy_(torch.randn(features))
    assert norm.bias is not None
    norm.bias.copy_(torch.randn(features))
    if prepared:
        norm.prepare()
    x = torch.randn(3, features) * 0.1 + 3
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    expected = centred / (variance + 1e-3).sqrt() * weight_of(norm).double() + norm.bias.double()
    torch.testing.assert_close(norm(x), expected.float(), rtol=1e-5, atol=1e-5)
    assert norm.to(torch.float64)(wide).dtype is torch.float64


@for_each("has_bias", [False, True])
@for_each("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms_by_layer_of_several_heads_lie_side_by_side(
    dtype: torch.dtype, has_bias: bool
) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(3, 20), torch.randn(4, 5, 20).to(dtype)
    bias = torch.randn(3, 20) if has_bias else None
    heads = x[:, :3]
    expected = torch.layer_norm(heads.double(), (20,), None, None, 1e-5) * weight.double()
    if bias is not None:
        expected += bias.double()
    found = make_centring(weight, bias, 20, 1e-5, dtype).into(heads, heads)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads", [None, 3])
def test_one_by_layer_with_a_wider_weight_gives_rows_of_their_own_dtype(heads: int | None) -> None:
    plan = NormPlan("layer", has_bias=True, plus=1.0)
    norm = Norm(16, 1e-5, plan, heads=heads, dtype=torch.bfloat16)
    assert norm.bias is not None
    for parameter in (weight_of(norm), norm.bias):
        parameter.copy_(0.1 * torch.randn(parameter.shape))
    x = torch.randn(4, *weight_of(norm).shape[:-1], 16).bfloat16()
    normed = torch.nn.functional.layer_norm(x.double(), (16,), eps=1e-5)
    expected = normed * (1 + weight_of(norm).double()) + norm.bias.double()
    found = norm.scaler.into(x, torch.empty_like(x))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.bfloat16(), rtol=2**-8, atol=2**-8)
