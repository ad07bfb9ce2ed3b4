"""Every kernel computes the same product, and gives its weight back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from asyncgen import native
from asyncgen.models.kernels import products as kernels
from asyncgen.models.kernels.linear import Embedding, Linear

SIZES = [(8, 6), (67, 6), (300, 70), (1024, 512), (2112, 512)]


def layer(out: int, into: int, bias: bool, dtype: torch.dtype = torch.float32) -> Linear:
    made = Linear(into, out, bias, dtype=dtype)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    return made


def tolerance(dtype: torch.dtype) -> float:
    return 1e-4 if dtype == torch.float32 else 0.5


@pytest.fixture(autouse=True, params=["other", "intel", "native"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels of both kinds of processors, on any; and our own, where they run."""
    if request.param != "native":
        monkeypatch.setattr(native, "kernels", None)
    elif native.kernels is None:
        pytest.skip("our own kernels do not run here")
    monkeypatch.setattr(kernels, "has_intel_kernels", lambda: request.param == "intel")
    return str(request.param)


@pytest.fixture(autouse=True)
def setting(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    # The choice of kernel, not the computation: packed ones are covered on any machine.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.parametrize(("out", "into"), SIZES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 9, 40])
def test_all_ways_to_multiply_agree(
    out: int, into: int, bias: bool, dtype: torch.dtype, rows: int
) -> None:
    made = layer(out, into, bias, dtype)
    x = torch.randn(rows, into).to(dtype)
    assert made.weight is not None
    expected = nn.functional.linear(x, made.weight, made.bias)
    for _ in range(2):
        kernel = made.ready()
        buffer = torch.empty(rows, out, dtype=dtype)
        residual = torch.ones(rows, out, dtype=dtype)
        kernel.add_to(residual, x)
        for product in (kernel.product(x), kernel.into(x, buffer), made(x), residual - 1):
            torch.testing.assert_close(product, expected, atol=tolerance(dtype), rtol=0.02)
        made.prepare()


@pytest.mark.parametrize(("out", "into"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_weight_comes_back_and_the_original_is_freed(
    out: int, into: int, dtype: torch.dtype
) -> None:
    made = layer(out, into, False, dtype)
    assert made.weight is not None
    original = made.weight.clone()
    made.prepare()
    made.prepare()
    assert made.weight is None
    assert torch.equal(made.dense_weight(), original)


def test_few_rows_land_in_the_buffer() -> None:
    for out, into in SIZES:
        made = layer(out, into, False)
        made.prepare()
        buffer = torch.empty(1, out)
        assert made.ready().into(torch.randn(1, into), buffer) is buffer


@pytest.mark.parametrize(
    ("out", "threads", "chunks"), [(8, 1, 2), (8, 3, 4), (9, 2, 3), (7, 16, 7), (67, 2, 1)]
)
def test_a_weight_is_cut_into_equal_chunks_one_a_thread_at_least(
    monkeypatch: pytest.MonkeyPatch, out: int, threads: int, chunks: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(native, "kernels", None)
    monkeypatch.setattr(kernels, "has_intel_kernels", lambda: False)
    made = layer(out, 5, True)
    made.prepare()
    assert isinstance(made.kernel, kernels.PlainKernel)
    assert made.kernel.chunks.shape == (chunks, out // chunks, 5)


def test_a_strided_row_is_read_as_it_is() -> None:
    made = layer(8, 6, False)
    made.prepare()
    x = torch.randn(6, 3)[:, 1:2].t()
    torch.testing.assert_close(made(x), x @ made.dense_weight().T)


def test_without_the_packed_operator_everything_still_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_linear", None)
    monkeypatch.setattr(native, "kernels", None)
    made = layer(1024, 512, True)
    x = torch.randn(2, 512)
    expected = made(x)
    made.prepare()
    assert isinstance(made.kernel, kernels.DenseKernel)
    torch.testing.assert_close(made(x), expected, atol=1e-4, rtol=0)


def test_moving_a_prepared_layer_keeps_it_prepared() -> None:
    made = layer(300, 70, True)
    made.prepare()
    x = torch.randn(2, 70)
    expected = made(x)
    made.to(torch.bfloat16)
    assert made.weight is None
    assert made.dense_weight().dtype == torch.bfloat16
    torch.testing.assert_close(made(x.bfloat16()).float(), expected, atol=0.5, rtol=0.05)


def test_a_copy_is_independent() -> None:
    made = layer(1024, 512, False)
    made.prepare()
    x = torch.randn(1, 512)
    twin = copy.deepcopy(made)
    assert torch.equal(twin(x), made(x))
    twin.to(torch.float64)
    assert made(x).dtype == torch.float32


def test_a_new_weight_replaces_the_prepared_one() -> None:
    made = layer(8, 6, False)
    made.prepare()
    made.weight = nn.Parameter(torch.eye(8, 6), requires_grad=False)
    x = torch.randn(2, 6)
    torch.testing.assert_close(made(x)[:, :6], x)
    made.prepare()
    torch.testing.assert_close(made(x)[:, :6], x)


def test_prepare_does_nothing_on_meta() -> None:
    with torch.device("meta"):
        made = Linear(4, 4, True)
    made.prepare()
    assert made.weight is not None
    assert made.weight.is_meta


@pytest.mark.parametrize("own_copy", [False, True])
@pytest.mark.parametrize("shape", [(40, 8), (1024, 512)])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_tied_layer_multiplies_by_the_table(
    own_copy: bool, shape: tuple[int, int], rows: int
) -> None:
    table = torch.randn(shape)
    made = Linear(shape[1], shape[0])
    made.weight = None
    made.tie(table, own_copy=own_copy)
    x = torch.randn(rows, shape[1])
    torch.testing.assert_close(made(x), x @ table.T, atol=1e-4, rtol=0)
    assert torch.equal(made.dense_weight(), table)


def test_layer_without_weight_raises_assertion_error() -> None:
    made = Linear(4, 4)
    made.weight = None
    with pytest.raises(AssertionError, match="without weight"):
        made(torch.ones(1, 4))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_embedding_gives_the_model_dtype_whatever_is_stored(stored: torch.dtype) -> None:
    table = Embedding(10, 4, dtype=torch.float32)
    weight: Tensor = torch.randn(10, 4).to(stored)
    table.weight = nn.Parameter(weight, requires_grad=False)
    table.prepare()
    ids = torch.tensor([[1, 9], [0, 1]])
    rows = table(ids)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, weight.float()[ids])


def test_an_embedding_follows_a_change_of_dtype() -> None:
    table = Embedding(10, 4, dtype=torch.float32)
    table.lookup(torch.tensor([1]))
    table.to(torch.bfloat16)
    assert table.lookup(torch.tensor([1])).dtype == torch.bfloat16


def stored_in(stored: torch.dtype, out: int, into: int) -> tuple[Linear, Linear]:
    """A layer whose weight came in 16 bits, and the same with the weight converted before."""
    made, wide = layer(out, into, True), layer(out, into, True)
    assert made.bias is not None and made.weight is not None
    made.weight = nn.Parameter(made.weight.to(stored), requires_grad=False)
    wide.weight = nn.Parameter(made.weight.float(), requires_grad=False)
    wide.bias = made.bias
    return made, wide


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_a_weight_of_16_bits_computes_and_comes_back_in_float32(
    stored: torch.dtype, maker: str
) -> None:
    made, wide = stored_in(stored, 300, 70)
    x = torch.randn(5, 70)
    assert made.keeps(stored) is (maker == "native")
    for _ in range(2):
        assert torch.equal(made(x), wide(x))
        assert made.dense_weight().dtype == torch.float32
        assert torch.equal(made.dense_weight(), wide.dense_weight())
        made.prepare()
        wide.prepare()
    assert made.kernel is not None
    assert made.kernel.dense().dtype == (stored if maker == "native" else torch.float32)
    made.compute_in_place()
    assert made.weight is not None and made.weight.dtype == torch.float32
    made.weight[0] = 3.0001  # which 16 bits do not have
    assert torch.equal(made.dense_weight()[0], torch.full((70,), 3.0001))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_moving_a_weight_of_16_bits(stored: torch.dtype, maker: str) -> None:
    made, wide = stored_in(stored, 300, 70)
    made.prepare()
    wide.prepare()
    x = torch.randn(2, 70)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        twins = [copy.deepcopy(one).to(dtype) for one in (made, wide)]
        assert torch.equal(twins[0](x.to(dtype)), twins[1](x.to(dtype)))
        assert twins[0].dense_weight().dtype == twins[0].dtype == dtype
    made.to("cpu")
    assert made.kernel is not None
    assert made.kernel.dense().dtype == (stored if maker == "native" else torch.float32)
    assert torch.equal(made(x), wide(x))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("own_copy", [False, True])
def test_a_layer_tied_to_a_table_of_16_bits(stored: torch.dtype, own_copy: bool) -> None:
    table = torch.randn(40, 8).to(stored)
    made, wide = Linear(8, 40), Linear(8, 40)
    for one, its in ((made, table), (wide, table.float())):
        one.weight = None
        one.tie(its, own_copy=own_copy)
    x = torch.randn(3, 8)
    torch.testing.assert_close(made(x), wide(x), atol=1e-5, rtol=1e-5)
    assert torch.equal(made.dense_weight(), table.float())


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_the_state_of_a_table_is_in_its_dtype(stored: torch.dtype) -> None:
    table = Embedding(10, 4, dtype=torch.float32)
    table.weight = nn.Parameter(torch.randn(10, 4).to(stored), requires_grad=False)
    table.prepare()
    state = table.state_dict()
    assert torch.equal(state["weight"], table.weight.float())
    state["weight"][3] = 3.0001  # which 16 bits do not have
    table.load_state_dict(state)
    assert torch.equal(table(torch.tensor([3]))[0], torch.full((4,), 3.0001))
    own = Embedding(10, 4)
    assert own.state_dict()["weight"].data_ptr() == own.weight.data_ptr()
