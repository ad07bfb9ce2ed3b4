"""Products of rows in float16: as exact as rounding once, and the same in any company."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn.functional import silu

from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_half import HalfKernel
from asyncgen.models.kernels.native_linear import widens
from asyncgen.models.kernels.products import choose_kernel
from tests.models.build import all_logits, random_config, random_ids, random_model

pytestmark = pytest.mark.skipif(
    not widens(torch.float16, torch.float32), reason="needs our kernels, for AVX-512"
)


def drawn(outputs: int = 70, inputs: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (torch.randn(outputs, inputs) / 8).half(), torch.randn(outputs).half()


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_are_rounded_once(rows: int) -> None:
    weight, bias = drawn()
    kernel = choose_kernel(weight, bias)
    assert isinstance(kernel, HalfKernel)
    x = torch.randn(rows, 300).half()
    exact = x.double() @ weight.double().T + bias.double()
    # As wide.product, whose sums are float32's; half of the last place of float16, and a little.
    torch.testing.assert_close(kernel.product(x).double(), exact, rtol=2**-11 * 1.01, atol=1e-4)
    torch_s = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(kernel.product(x), torch_s, rtol=2**-9, atol=2e-3)
    assert torch.equal(kernel.dense(), weight)


def test_rows_do_not_depend_on_their_company() -> None:
    kernel = choose_kernel(*drawn())
    x = torch.randn(60, 300).half()
    whole = kernel.product(x)
    for first, end in ((0, 1), (7, 20), (59, 60)):
        assert torch.equal(kernel.product(x[first:end]), whole[first:end])


def test_gates_sums_and_copies() -> None:
    weight, bias = drawn()
    x = torch.randn(5, 300).half()
    plain = choose_kernel(weight, bias)
    gated = choose_kernel(weight, bias, gates=True, activation="silu")
    gate, up = (x.float() @ weight.float().T + bias.float()).chunk(2, dim=1)
    torch.testing.assert_close(gated.product(x), (silu(gate) * up).half(), rtol=2e-3, atol=1e-3)
    sums = torch.randn(5, 70).half()
    expected = sums + plain.product(x)
    plain.add_to(sums, x)
    assert torch.equal(sums, expected)
    assert torch.equal(plain.into(x, torch.empty(5, 70).half()), plain.product(x))
    for again in (copy.deepcopy(gated), pickle.loads(pickle.dumps(gated))):
        assert torch.equal(again.product(x), gated.product(x))


def test_what_is_beyond_float16_is_infinite() -> None:
    kernel = choose_kernel(torch.full((32, 64), 100.0).half(), None)
    assert bool(kernel.product(torch.full((1, 64), 100.0).half()).isinf().all())


def test_layers_go_to_float16_and_back() -> None:
    layer = Linear(64, 48, dtype=torch.float32)
    torch.nn.init.normal_(layer.get_parameter("weight"))
    before = layer.dense_weight().clone()
    layer.prepare()
    half = layer.to(torch.float16)
    assert isinstance(half.kernel, HalfKernel)
    assert torch.equal(half.dense_weight(), before.half())
    assert torch.equal(half.to(torch.float32).dense_weight(), before.half().float())


def test_a_model_in_float16_is_near_the_one_in_float32() -> None:
    config, ids = random_config("llama"), random_ids(2, 12, seed=1)
    half = random_model(config, seed=3, dtype=torch.float16)
    wide = random_model(config, seed=3, dtype=torch.float32)
    found = all_logits(half, ids)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), all_logits(wide, ids), rtol=0.02, atol=0.02)
