"""Float16: widened for computing, rounded once, and infinite where torch's is."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn.functional import silu

from asyncgen import native
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.norm import Scaler, make_centring, make_scaler
from asyncgen.models.kernels.products import choose_kernel
from asyncgen.models.kernels.rope import _rotate, make_rotate
from tests.cases import for_each
from tests.models.build import all_logits, random_config, random_ids, random_model

pytestmark = pytest.mark.skipif(
    not native.supports(torch.float16), reason="needs our kernels, for AVX-512"
)


def drawn(outputs: int = 70, inputs: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (torch.randn(outputs, inputs) / 8).half(), torch.randn(outputs).half()


@for_each("rows", [1, 3, 40])
@for_each("inputs", [1, 17, 255, 256, 257, 300, 700])
def test_products_are_rounded_once(rows: int, inputs: int) -> None:
    weight, bias = drawn(inputs=inputs)
    kernel = choose_kernel(weight, bias)
    assert isinstance(kernel, NativeKernel)
    x = torch.full((rows, inputs + 40), torch.nan).half()[:, 7 : 7 + inputs]
    x.copy_(torch.randn(rows, inputs))
    exact = x.double() @ weight.double().T + bias.double()
    # Sums are float32's; half of the last place of float16, and a little.
    torch.testing.assert_close(kernel.product(x).double(), exact, rtol=2**-11 * 1.01, atol=1e-4)
    wide = NativeKernel(weight, bias, dtype=torch.float32)
    assert torch.equal(kernel.product(x), wide.product(x.float()).half())
    torch_s = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(kernel.product(x), torch_s, rtol=2**-9, atol=4e-3)
    assert torch.equal(kernel.dense(), weight)
    sums = torch.randn(rows, 70).half()
    expected = sums.float()
    wide.add_to(expected, x.float())
    kernel.add_to(sums, x)
    assert torch.equal(sums, expected.half())


def test_rows_do_not_depend_on_other_rows() -> None:
    kernel = choose_kernel(*drawn())
    x = torch.randn(60, 300).half()
    whole = kernel.product(x)
    for first, end in ((0, 1), (7, 20), (59, 60)):
        assert torch.equal(kernel.product(x[first:end]), whole[first:end])


def test_gates_and_copies() -> None:
    weight, bias = drawn()
    x = torch.randn(5, 300).half()
    plain = choose_kernel(weight, bias)
    gated = choose_kernel(weight, bias, gates=True, activation="silu")
    gate, up = (x.float() @ weight.float().T + bias.float()).chunk(2, dim=1)
    torch.testing.assert_close(gated.product(x), (silu(gate) * up).half(), rtol=2e-3, atol=1e-3)
    assert torch.equal(plain.into(x, torch.empty(5, 70).half()), plain.product(x))
    for again in (copy.deepcopy(gated), pickle.loads(pickle.dumps(gated))):
        assert torch.equal(again.product(x), gated.product(x))


def test_every_number_is_read_and_written_as_torch_does() -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)[:, None]
    one = NativeKernel(torch.ones(1, 1).half(), None)
    torch.testing.assert_close(one.product(every), every, atol=0, rtol=0, equal_nan=True)
    # Halfway between each number and the next one, and a little to either side.
    numbers = every[every.isfinite()].float().sort().values
    for share in (0.25, 0.5, 0.75):
        between = torch.lerp(numbers[:-1], numbers[1:], share)
        stream = torch.zeros(len(between), 1).half()
        kernel = NativeKernel(between[:, None], None, dtype=torch.float32)
        wide = kernel.product(torch.ones(1, 1))
        assert torch.equal(wide[0], between)
        rounded = NativeKernel(torch.zeros(len(between), 1).half(), between)
        found = rounded.product(stream[:1])[0]
        assert torch.equal(found, between.half())


def test_results_beyond_float16_are_infinite() -> None:
    kernel = choose_kernel(torch.full((32, 64), 100.0).half(), None)
    x = torch.full((1, 64), 100.0).half()
    assert bool(kernel.product(x).isposinf().all())
    assert bool(kernel.product(-x).isneginf().all())
    small = choose_kernel(torch.full((32, 64), 1.0).half(), None)
    stream = torch.full((1, 32), 65504.0).half()
    small.add_to(stream, x)  # torch's residual, too
    assert bool(stream.isposinf().all())


def test_norms_of_large_rows_are_those_of_float32() -> None:
    torch.manual_seed(0)
    weight = torch.randn(100).half()
    x = (torch.randn(4, 100) * 2e4).clamp(-65504, 65504).half()  # whose squares are beyond
    x[3, 5] = torch.inf
    ours, theirs = make_scaler(weight, 100, 1e-5), Scaler(weight, 100, 1e-5, torch.float16)
    found, other = ours.into(x, torch.empty_like(x)), theirs.into(x, torch.empty_like(x))
    torch.testing.assert_close(found, other, rtol=2e-3, atol=1e-3, equal_nan=True)
    assert torch.equal(found.isnan(), other.isnan()) and bool(found[3].isnan()[5])
    centred = make_centring(weight, weight, 100, 1e-5, torch.float16)
    expected = torch.layer_norm(x[:3].double(), (100,), weight.double(), weight.double(), 1e-5)
    found = centred.into(x[:3], torch.empty_like(x[:3]))
    torch.testing.assert_close(found.double(), expected, rtol=2**-10, atol=1e-3)


@pytest.mark.parametrize("half", [1, 8, 20, 48])
def test_heads_turn_as_in_float32(half: int) -> None:
    torch.manual_seed(0)
    heads = torch.full((3, 9, 2, half), torch.nan).half()
    heads[:, :5] = torch.randn(3, 5, 2, half).half()
    angles = torch.randn(3, 1, 2, half).half(), torch.randn(3, 1, 2, half).half()
    expected = heads[:, :5].double()
    _rotate(expected, *(one.double() for one in angles))
    make_rotate(heads)(heads[:, :5], *angles)
    torch.testing.assert_close(heads[:, :5].double(), expected, rtol=2**-11, atol=1e-6)
    assert bool(heads[:, 5:].isnan().all())


def test_layers_go_to_float16_and_back() -> None:
    layer = Linear(64, 48, dtype=torch.float32)
    torch.nn.init.normal_(layer.get_parameter("weight"))
    before = layer.dense_weight().clone()
    layer.prepare()
    half = layer.to(torch.float16)
    assert isinstance(half.kernel, NativeKernel)
    assert torch.equal(half.dense_weight(), before.half())
    assert torch.equal(half.to(torch.float32).dense_weight(), before.half().float())


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_a_model_in_float16_is_near_the_others(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, ids = random_config(family), random_ids(2, 12, seed=1)
    half = random_model(config, seed=3, dtype=torch.float16)
    wide = random_model(config, seed=3, dtype=torch.float32)
    found, exact = all_logits(half, ids), all_logits(wide, ids)
    assert half.runs_in_one_call
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), exact, rtol=0.02, atol=0.02)
    monkeypatch.setattr(native, "kernels", None)
    theirs = all_logits(random_model(config, seed=3, dtype=torch.float16), ids)
    torch.testing.assert_close(found, theirs, rtol=0.02, atol=0.02)
    # What torch loses by rounding more often, we do not lose.
    away, other = ((one.float() - exact).norm() for one in (found, theirs))
    assert away <= 1.5 * other
