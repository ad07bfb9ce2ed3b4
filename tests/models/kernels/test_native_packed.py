"""Products of packed weights against the plain formula, and what no company changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.functional import pad, silu

from asyncgen.models.kernels.native_packed import (
    PackedLinearKernel,
    PackedStack,
    supports_packed,
)
from asyncgen.models.kernels.packed_weight import SIGNED, UNSIGNED, PackedWeight
from tests.cases import for_each

pytestmark = pytest.mark.skipif(
    not supports_packed(torch.float32), reason="needs our kernels, for AVX-512 and VNNI"
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDED = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""What rounding a result in the end errs by."""
SHAPES = [(5, 48, 32), (64, 96, 16), (70, 600, 32), (33, 72, 64), (32, 300, 128)]
"""Outputs, inputs and group: whole panels and parts of them, groups that are cut off."""


def weight_of(kind: str, outputs: int, inputs: int, group: int) -> PackedWeight:
    """A random weight: of 4 or 8 bits, with the parts that its name tells."""
    groups = -(-inputs // group)
    wide = groups * group
    parts: dict[str, Any] = {"scales": torch.rand(outputs, groups) / 50 + 0.001}
    if "4" in kind:
        parts["codes"] = torch.randint(0, 256, (outputs, wide // 2), dtype=torch.uint8)
        parts["table"] = UNSIGNED if "zero" in kind or "minimum" in kind else SIGNED
    else:
        parts["codes"] = torch.randint(-128, 128, (outputs, wide), dtype=torch.int8)
    for name in ("half", "bfloat16"):
        if name in kind:
            parts["scales"] = getattr(parts["scales"], name)()
    if "zero" in kind:
        least, most = (-128, 128) if "far" in kind else (-8, 16)
        parts["zeros"] = torch.randint(least, most, (outputs, groups), dtype=torch.int8)
    if "minimum" in kind:
        parts["minimums"] = torch.randn(outputs, groups).half()
    if "row" in kind:
        for name in ("scales", "zeros", "minimums"):
            if name in parts:
                parts[name] = parts[name][:, :1].contiguous()
    if "two-level" in kind:
        for name in ("scales", *(["minimums"] if "minimum" in kind else [])):
            parts[name] = torch.randint(-63, 64, (outputs, groups), dtype=torch.int8)
            parts[f"super_{name}"] = torch.rand(outputs, -(-wide // 256)).half() / 500
    if "order" in kind:
        parts["order"] = torch.randperm(inputs).int()
    return PackedWeight(inputs=inputs, group=group, **parts)


KINDS = [
    "8 half",
    "8 float32 zero",
    "8 bfloat16 row",
    "8 float32 row zero",
    "8 two-level",
    "8 half minimum",
    "8 two-level minimum",
    "4 half",
    "4 bfloat16 zero",
    "4 half zero far",
    "4 half zero minimum order",
    "4 two-level minimum",
    "4 half minimum order",
    "4 float32 row",
]


def most_of(weight: PackedWeight, dtype: torch.dtype) -> int:
    """The largest integer of an input."""
    has_bytes = weight.table is not None or weight.zeros is None
    return 127 if dtype == torch.bfloat16 and has_bytes else 32767


def by_groups(weight: PackedWeight, x: torch.Tensor) -> torch.Tensor:
    """Inputs in the order of the weight's columns, ``[rows, groups, group]``."""
    x = x if weight.order is None else x[:, weight.order.long()]
    return pad(x, (0, -x.shape[1] % weight.group)).view(len(x), -1, weight.group)


def rounded(weight: PackedWeight, x: torch.Tensor) -> torch.Tensor:
    """Inputs as the plain formula rounds them: integers times the scale of their group."""
    groups = by_groups(weight, x.float())
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    most = torch.tensor(float(most_of(weight, x.dtype)))
    wide = (groups * (most / largest)).round().double() * (largest / most).double()
    wide = wide.flatten(1)[:, : weight.inputs]
    return wide if weight.order is None else wide[:, weight.order.argsort()]


@for_each("dtype", DTYPES, ids=str)
@for_each("kind", KINDS)
def test_products_are_those_of_the_formula(kind: str, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        weight = weight_of(kind, *shape)
        kernel = PackedLinearKernel([weight], None, dtype=dtype)
        values = weight.dequantise().double()
        for rows in (1, 3, 13, 40):
            x = torch.randn(rows, weight.inputs).to(dtype)
            found, inputs = kernel.product(x).double(), rounded(weight, x)
            expected, most = inputs @ values.T, inputs.abs() @ values.abs().T
            # What is left is float32's rounding, and that of what comes out.
            most = 2e-6 * most + expected.abs() * ROUNDED[dtype]
            assert ((found - expected).abs() <= most).all()


@for_each("dtype", DTYPES, ids=str)
@for_each("kind", KINDS)
def test_rounding_inputs_errs_by_half_a_step_of_a_group_at_most(
    kind: str, dtype: torch.dtype
) -> None:
    weight = weight_of(kind, 64, 256, 32)
    kernel = PackedLinearKernel([weight], None, dtype=dtype)
    values, x = weight.dequantise().double(), torch.randn(40, 256).to(dtype)
    exact = x.double() @ values.T
    largest = by_groups(weight, x.double()).abs().amax(-1)
    sizes = by_groups(weight, values.abs()).sum(-1)
    bound = largest / (2 * most_of(weight, dtype)) @ sizes.T
    bound = 1.001 * bound + 2e-6 * (x.double().abs() @ values.abs().T)
    bound = bound + (exact.abs() + bound) * ROUNDED[dtype]
    assert ((kernel.product(x).double() - exact).abs() <= bound).all()


@for_each("dtype", DTYPES, ids=str)
@for_each("kind", KINDS)
def test_rows_do_not_depend_on_other_rows(kind: str, dtype: torch.dtype) -> None:
    weight = weight_of(kind, 70, 600, 32)
    kernel = PackedLinearKernel([weight], None, dtype=dtype)
    x = torch.randn(300, 600).to(dtype)
    whole = kernel.product(x)
    for start, end in ((0, 1), (7, 20), (250, 300)):
        assert torch.equal(kernel.product(x[start:end]), whole[start:end])


@for_each("kind", KINDS)
@for_each("is_gated", [False, True])
def test_the_weight_comes_back_as_it_was(kind: str, is_gated: bool) -> None:
    weight = weight_of(kind, 70, 300, 32)
    kernel = PackedLinearKernel([weight], torch.randn(70), is_gated, dtype=torch.float32)
    (back,) = kernel.parts()
    assert torch.equal(back.codes, weight.codes)
    assert torch.equal(back.dequantise(), weight.dequantise())
    x = torch.randn(2, 300)
    assert torch.equal(copy.deepcopy(kernel).product(x), kernel.product(x))


@for_each("dtype", DTYPES, ids=str)
@for_each("kind", KINDS)
def test_rows_are_looked_up_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    weight = weight_of(kind, 70, 300, 32)
    kernel = PackedLinearKernel([weight], None, dtype=dtype)
    ids = torch.tensor([69, 0, 31, 16, 0])
    assert torch.equal(kernel.look_up(ids), weight.dequantise()[ids].to(dtype))
    with pytest.raises(IndexError, match="row 70 of 70"):
        kernel.look_up(torch.tensor([70]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates_biases_and_sums(dtype: torch.dtype) -> None:
    weight, bias = weight_of("8 half", 64, 96, 32), torch.randn(64)
    x = torch.randn(3, 96).to(dtype)
    plain = PackedLinearKernel([weight], bias, dtype=dtype).product(x).float()
    expected = rounded(weight, x).float() @ weight.dequantise().T + bias
    torch.testing.assert_close(plain, expected, atol=2e-2, rtol=2e-2)
    gated = PackedLinearKernel([weight], bias, True, dtype=dtype).product(x).float()
    gate, up = expected.chunk(2, dim=1)
    torch.testing.assert_close(gated, silu(gate) * up, atol=5e-2, rtol=5e-2)
    sums = torch.ones(3, 64, dtype=dtype)
    PackedLinearKernel([weight], bias, dtype=dtype).add_to(sums, x)
    torch.testing.assert_close(sums.float(), expected + 1, atol=2e-2, rtol=2e-2)


def test_parts_of_other_kinds_keep_kernels_of_their_own() -> None:
    parts = [weight_of("4 two-level minimum", 40, 512, 32), weight_of("8 two-level", 24, 512, 16)]
    bias, x = torch.randn(64), torch.randn(5, 512)
    kernel = PackedLinearKernel(parts, bias, dtype=torch.float32)
    whole = torch.cat([part.dequantise() for part in parts])
    torch.testing.assert_close(kernel.product(x), x @ whole.T + bias, atol=2e-3, rtol=1e-3)
    assert torch.equal(kernel.dense(), whole)
    assert torch.equal(copy.deepcopy(kernel).product(x), kernel.product(x))


def test_nan_stays_nan_and_tiny_inputs_count_as_zero() -> None:
    weight = weight_of("4 half", 32, 64, 32)
    kernel = PackedLinearKernel([weight], None, dtype=torch.float32)
    x = torch.zeros(4, 64)
    x[0, 3], x[1, 40], x[2] = torch.nan, torch.inf, 1e-38
    found = kernel.product(x)
    assert not found[:2].isfinite().any()
    assert torch.equal(found[2:], torch.zeros(2, 32))


@for_each("dtype", DTYPES, ids=str)
@for_each("kind", ["8 half", "4 bfloat16 zero"])
def test_stacks_hold_several_matrices(kind: str, dtype: torch.dtype) -> None:
    weight = weight_of(kind, 3 * 70, 96, 32)
    for is_gated in (False, True):
        stack = PackedStack([weight], torch.randn(210), 3, is_gated, dtype=dtype)
        assert torch.equal(stack.dense(), weight.dequantise())
        assert torch.equal(copy.deepcopy(stack).dense(), weight.dequantise())
