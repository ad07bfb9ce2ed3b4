"""Refusals of the kernels: always another shape or dtype, in a debug build also a wrong address.

The build is emulated, so that these tests run on any x86-64.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from asyncgen import native
from asyncgen.families.plans.layer_plan import LatentPlan
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_latent import NativeLatentHeads
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.norm import NativeScaler, Norm
from asyncgen.models.latent import LatentHeads
from tests.cases import for_each
from tests.native.build import CHECKS, build_kernels, load_kernels, needs_compiler

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [needs_compiler, pytest.mark.gate]

HEADS, KV_HEADS, SIZE, PAGE_SIZE, NUM_PAGES = 4, 2, 16, 8, 6

PLAIN = (0, False, 1.0, 0.0, None, False, 0)
"""Options of a layer that sees all keys."""


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = build_kernels(tmp_path_factory.mktemp("checked"), CHECKS, is_emulated=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "kernels", load_kernels(file))
        yield native.kernels


def cut_off(tensor: Tensor) -> Tensor:
    """Return the tensor without the second half of its memory."""
    tensor.untyped_storage().resize_(tensor.nbytes // 2)
    return tensor


def test_bans_stay_inside_of_their_tensors(kernels: Any) -> None:
    scores, words = torch.zeros(3, 70), torch.zeros(2, 3, dtype=torch.int32)
    kernels.ban(scores, words, torch.tensor([2, 0]))
    assert scores.isinf().sum(1).tolist() == [70, 0, 70]
    for number in range(3):
        given = [scores.clone(), words.clone(), torch.tensor([2, 0])]
        cut_off(given[number])
        with pytest.raises(RuntimeError, match=r"bytes at|memory is"):
            kernels.ban(*given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_search_for_the_likeliest_stays_inside_of_its_tensors(
    kernels: Any, dtype: torch.dtype
) -> None:
    whole = [torch.zeros(3, 700, dtype=dtype), torch.zeros(3), torch.zeros(3, dtype=torch.int64)]
    whole[0][1, 699] = 1
    kernels.argmax(*whole)
    assert (whole[1].tolist(), whole[2].tolist()) == ([0, 1, 0], [0, 699, 0])
    for number in range(3):
        given = [tensor.clone() for tensor in whole]
        cut_off(given[number])
        with pytest.raises(RuntimeError, match=r"bytes at|memory is"):
            kernels.argmax(*given)
        wrong = [tensor.clone() for tensor in whole]
        wrong[number] = wrong[number][:2] if number else wrong[number].t()
        with pytest.raises(ValueError, match=r"scores are \[R, V\]|of these scores they are \[3\]"):
            kernels.argmax(*wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_stay_inside_of_their_tensors(dtype: torch.dtype) -> None:
    kernel = NativeKernel(torch.randn(64, 64).to(dtype), torch.randn(64))
    x, out = torch.randn(4, 64).to(dtype), torch.empty(4, 64, dtype=dtype)
    expected = kernel.product(x)
    assert torch.equal(kernel.into(x, out), expected)
    with pytest.raises(RuntimeError, match=r"was given \d+ bytes at"):
        kernel.into(cut_off(x.clone()), out)
    with pytest.raises(RuntimeError, match="but the tensor's memory is"):
        kernel.into(x, cut_off(out.clone()))
    with pytest.raises(RuntimeError, match="over its own rows"):
        kernel.into(x, x)
    for wrong in (out[:3], out[:, :32], out.t().contiguous().t(), out.double()):
        with pytest.raises(ValueError, match=r"this weight gives \[4, 64\]"):
            kernel.into(x, wrong)


def test_latent_heads_stay_inside_of_their_tensors(kernels: Any) -> None:
    plan = LatentPlan(rank=8, query_rank=6, rope_dim=4, nope_dim=8, values=14)
    made = LatentHeads(16, 3, plan, bias=True, dtype=torch.float32)
    for parameter in made.parameters():
        parameter.copy_(torch.randn(parameter.shape))
    for module in made.modules():
        if isinstance(module, (Linear, Norm)):
            module.prepare()
    heads, x, out = made.ready(), torch.randn(5, 16), torch.empty(5, 3 * 3 * 14)
    assert isinstance(heads, NativeLatentHeads)
    assert heads.into(x, out) is out
    assert torch.equal(made.into(x, torch.empty_like(out)), out)
    for wrong in ((cut_off(x.clone()), out), (x, cut_off(out.clone()))):
        with pytest.raises(RuntimeError, match="but the tensor's memory is"):
            heads.into(*wrong)
    for pair in ((x[:4], out), (x, out[:, 1:]), (x.double(), out), (x.t().contiguous().t(), out)):
        with pytest.raises(ValueError, match=r"are made of \[N, 16\] as \[N, 126\]"):
            heads.into(*pair)
    product, norm = made.latents.ready(), made.latent_norm.scaler
    assert isinstance(product, NativeKernel) and isinstance(norm, NativeScaler)
    latents = product.compiled
    sizes = {"heads": 3, "turned": 4, "unturned": 8, "values": 14, "head_dim": 14}
    with pytest.raises(ValueError, match="do not fit together"):
        kernels.Latent(latents, None, latents, norm.compiled, latents, **sizes)


def test_latent_heads_have_sizes_that_can_be(kernels: Any) -> None:
    def product(inputs: int, outputs: int, activation: str | None = None) -> Any:
        made = NativeKernel(torch.ones(outputs, inputs), None, activation=activation)
        return made.compiled

    def parts(activation: str | None = None) -> tuple[Any, ...]:
        norm = NativeScaler(torch.ones(8), 8, 1e-6, torch.float32).compiled
        queries = product(16, 24, activation)
        return product(16, 12), None, queries, norm, product(8, 48)

    sizes = {"heads": 3, "turned": 4, "unturned": 4, "values": 12, "head_dim": 12}
    kernels.Latent(*parts(), **sizes)
    # The first two would be right if 64 bits were all that there are of a number.
    for wrong in ({"heads": 3 + 2**61}, {"head_dim": 12 + 2**62}, {"head_dim": 10}, {"turned": 0}):
        with pytest.raises(ValueError, match="do not fit together"):
            kernels.Latent(*parts(), **{**sizes, **wrong})
    with pytest.raises(ValueError, match="do not fit together"):
        kernels.Latent(*parts("relu"), **sizes)


def test_rows_that_share_memory_are_not_written_to(kernels: Any) -> None:
    kernel = NativeKernel(torch.randn(32, 32), None)
    norm = kernels.Norm(torch.ones(1, 32), None, eps=0, dtype=torch.float32, is_centred=False)
    shared, x, one = torch.zeros(1, 32).expand(3, 32), torch.randn(3, 32), torch.zeros(1, 32)
    kernel.into(shared, x)  # they may be read
    kernel.into(x[:1], one.expand(1, 32))
    for write in (
        lambda: kernel.into(x, shared),
        lambda: kernel.add_to(shared, x),
        lambda: norm.into(x, shared),
        lambda: norm.into(x, torch.zeros(64).as_strided((3, 32), (16, 1))),
    ):
        with pytest.raises(ValueError, match="results are"):
            write()
    angles = torch.zeros(3, 1, 2, 8)
    with pytest.raises(ValueError, match="heads are"):
        heads = torch.zeros(1, 2, 2, 8).expand(3, 2, 2, 8)
        kernels.Rotary(torch.float32).turn(heads, angles, angles)


def test_a_dtype_is_one_of_torch(kernels: Any) -> None:
    options: dict[str, Any] = {"eps": 0, "dtype": "torch.float32", "is_centred": False}
    with pytest.raises(ValueError, match=r"dtype is 'torch\.float32' and must be"):
        kernels.Norm(torch.ones(1, 32), None, **options)
    for wrong in ("torch.bfloat16", None, torch.float64):
        with pytest.raises(ValueError, match="dtype is"):
            kernels.Rotary(wrong)


def test_a_gated_product_is_not_added() -> None:
    kernel = NativeKernel(torch.randn(64, 32), None, True)
    with pytest.raises(ValueError, match="an activation lets through"):
        kernel.add_to(torch.zeros(2, 64), torch.zeros(2, 32))


def test_weights_are_of_the_size_that_is_said(kernels: Any) -> None:
    options: dict[str, Any] = {"inputs": 32, "outputs": 40, "is_gated": False, "uses_tiles": False}
    options |= {"dtype": torch.float32, "matrices": 1, "activation": None}
    weight = torch.zeros(64 * 32)
    kernels.Linear(weight, torch.zeros(64), **options)
    for wrong in (weight[:-1], weight[::2], weight.double()):
        with pytest.raises(ValueError, match=r"need panels of 2048 numbers|torch\.float64"):
            kernels.Linear(wrong, None, **options)
    with pytest.raises(ValueError, match="the bias is"):
        kernels.Linear(weight, torch.zeros(40), **options)
    kernels.Linear(weight.half(), None, **options)
    with pytest.raises(ValueError, match=r"is torch\.float16, which rows in torch\.bfloat16"):
        kernels.Linear(weight.half(), None, **{**options, "dtype": torch.bfloat16})
    for name, size in (("inputs", 32 + 2**59), ("matrices", 1 + 2**53), ("outputs", -(2**63))):
        with pytest.raises(ValueError, match="are 1 to 1073741824 each, not"):
            kernels.Linear(weight, None, **{**options, name: size})
    with pytest.raises(ValueError, match=r"dtype is torch\.float64 and must be"):
        kernels.Linear(weight.double(), None, **{**options, "dtype": torch.float64})
    with pytest.raises(ValueError, match=r"is torch\.bfloat16, which rows in torch\.float16"):
        kernels.Linear(weight.bfloat16(), None, **{**options, "dtype": torch.float16})


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_widened(stored: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(stored)[:, None]
    found = NativeKernel(every, None, dtype=torch.float32).product(torch.ones(1, 1))
    torch.testing.assert_close(found[0], every[:, 0].float(), atol=0, rtol=0, equal_nan=True)


def test_norms_stay_inside_of_their_tensors(kernels: Any) -> None:
    options: dict[str, Any] = {"eps": 1e-6, "dtype": torch.float32, "is_centred": False}
    norm = kernels.Norm(torch.ones(2, 16), None, **options)
    for wrong in (torch.ones(16), torch.ones(2, 16)):
        with pytest.raises(ValueError, match="the bias is"):
            kernels.Norm(torch.ones(2, 16), wrong, **{**options, "is_centred": wrong.dim() == 1})
    x = torch.randn(3, 5, 16)
    rows = x[:, :2]
    norm.into(rows, rows)
    with pytest.raises(ValueError, match="rows are"):
        norm.into(x, x)
    with pytest.raises(ValueError, match="results are"):
        norm.into(rows, x[:2, :2])
    with pytest.raises(RuntimeError, match="but the tensor's memory is"):
        norm.into(rows, cut_off(torch.empty(3, 2, 16)))


def test_heads_are_turned_by_as_many_angles(kernels: Any) -> None:
    rotary = kernels.Rotary(torch.float32)
    heads, angles = torch.randn(3, 4, 2, 8), torch.randn(3, 1, 2, 8)
    rotary.turn(heads, angles, angles)
    with pytest.raises(ValueError, match="angles are"):
        rotary.turn(heads, angles, angles[:2])
    with pytest.raises(ValueError, match="heads are"):
        rotary.turn(heads.double(), angles, angles)
    with pytest.raises(RuntimeError, match="but the tensor's memory is"):
        rotary.turn(heads, angles, cut_off(angles.clone()))


class Step:
    """A step over pages, as the kernel gets it."""

    def __init__(self, kernels: Any) -> None:
        self.memory = torch.zeros(2, NUM_PAGES * KV_HEADS, PAGE_SIZE, SIZE)
        self.attention = kernels.Attention(
            [(tuple(self.memory), 0, False, 0.25, 0.0, None, False, 0)],
            num_heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=SIZE,
            page_size=PAGE_SIZE,
            uses_tiles=False,
            codes_of=None,
        )
        self.heads = torch.randn(13, HEADS + 2 * KV_HEADS, SIZE)
        self.out = torch.empty(13, HEADS * SIZE)

    def lay_out(self, rows: list[int], pages: list[int]) -> None:
        self.attention.lay_out(array("q", rows), array("q", pages), self.out)

    def attend(self) -> Tensor:
        found: Tensor = self.attention.attend(0, self.heads)
        return found


# Twelve tokens of a text that begins, and one behind eight others.
ROWS = [0, 12, 0, 0, 12, 1, 8, 2]
PAGES = [3, 1, 4, 0]


def test_a_step_is_computed(kernels: Any) -> None:
    step = Step(kernels)
    step.lay_out(ROWS, PAGES)
    assert step.attend() is step.out
    # The first token sees itself alone, so it gets its own values.
    values = step.heads[0, HEADS + KV_HEADS :].repeat_interleave(HEADS // KV_HEADS, 0)
    torch.testing.assert_close(step.out[0], values.flatten())


@for_each(
    ("rows", "pages", "said"),
    [
        (ROWS, [3, NUM_PAGES, 4, 0], "row 0 of a step: there is no page 6"),
        (ROWS, [3, 1, 4, -1], "row 1 of a step: there is no page -1"),
        (ROWS, [3, 1, 4], "row 1 of a step: its page table is too short for 2"),
        ([0, 12, 0, 0, 11, 1, 8, 2], PAGES, "row 1 of a step: it does not begin"),
        ([0, 12, 0, 0, 12, 0, 8, 2], PAGES, "row 1 of a step: tokens are 0"),
        ([0, 12, -1, 0, 12, 1, 8, 2], PAGES, "row 0 of a step: it starts at -1"),
        (ROWS[:4], PAGES, "tokens in all are 12"),
    ],
)
def test_rows_of_a_step_are_checked(
    kernels: Any, rows: list[int], pages: list[int], said: str
) -> None:
    with pytest.raises(RuntimeError, match=said):
        Step(kernels).lay_out(rows, pages)


def test_layers_read_tables_of_their_own(kernels: Any) -> None:
    memory = torch.zeros(2, NUM_PAGES * KV_HEADS, PAGE_SIZE, SIZE)
    window = (4, *PLAIN[1:6], 1)
    sizes = {"num_heads": HEADS, "kv_heads": KV_HEADS, "head_dim": SIZE, "page_size": PAGE_SIZE}
    layers = [(tuple(memory), *PLAIN), (tuple(memory), *window)]
    attention = kernels.Attention(layers, **sizes, uses_tiles=False, codes_of=None)
    heads, out = torch.randn(1, HEADS + 2 * KV_HEADS, SIZE), torch.empty(1, HEADS * SIZE)
    start = 2 * PAGE_SIZE + 3  # the second table has the last page only: what the window sees
    rows = array("q", [0, 1, start, 0, 0, 1, start, 3 - 2])
    attention.lay_out(rows, array("q", [3, 1, 4, 5]), out)
    for layer, page in enumerate((4, 5)):
        attention.attend(layer, heads)
        keys = memory[0].view(NUM_PAGES, KV_HEADS, PAGE_SIZE, SIZE)
        torch.testing.assert_close(keys[page, :, 3], heads[0, HEADS : HEADS + KV_HEADS])
    with pytest.raises(RuntimeError, match="there is no page"):
        attention.lay_out(rows, array("q", [3, 1, 4, -1]), out)
    with pytest.raises(ValueError, match="in each of 2 tables, not 4 in all"):
        attention.lay_out(rows[:4], array("q", [3, 1, 4]), out)


def test_attend_refuses_a_step_other_than_the_one_laid_out(kernels: Any) -> None:
    step = Step(kernels)
    with pytest.raises(ValueError, match="heads are"):
        step.attend()
    step.lay_out(ROWS, PAGES)
    with pytest.raises(ValueError, match=r"has \[13, 8, 16\]"):
        step.attention.attend(0, step.heads[:12])
    with pytest.raises(IndexError, match="layer is 1 and there are 1"):
        step.attention.attend(1, step.heads)
    with pytest.raises(RuntimeError, match="but the tensor's memory is"):
        step.attention.attend(0, cut_off(step.heads.clone()))


def test_a_step_may_have_no_tokens(kernels: Any) -> None:
    step = Step(kernels)
    step.heads, step.out = step.heads[:0], step.out[:0]
    with pytest.raises(ValueError, match="heads are"):  # no step was laid out yet
        step.attend()
    step.lay_out([], [])
    assert step.attend() is step.out
    for rows, tokens in (([], 3), (ROWS, 0)):
        step.out = torch.empty(tokens, HEADS * SIZE)
        with pytest.raises(ValueError, match=rf"are {len(rows) // 4} rows for {tokens} tokens"):
            step.lay_out(rows, PAGES)


def test_rows_and_pages_are_whole_numbers(kernels: Any) -> None:
    step = Step(kernels)
    for rows, pages in (
        (array("d", ROWS), array("q", PAGES)),
        (array("q", ROWS), array("i", PAGES)),
        (array("Q", ROWS), array("q", PAGES)),
    ):
        with pytest.raises(ValueError, match="array of 64-bit integers"):
            step.attention.lay_out(rows, pages, step.out)


def test_a_failure_inside_a_kernel_is_an_exception_after_it(kernels: Any) -> None:
    step = Step(kernels)
    pages = array("q", PAGES)
    step.attention.lay_out(array("q", ROWS), pages, step.out)
    pages[1] = 10**9
    with pytest.raises(RuntimeError, match=r"a check inside a kernel failed: page >= 0 && page <"):
        step.attend()
    pages[1] = 1
    step.attend()


def test_so_is_one_in_a_chunk_of_many_queries(kernels: Any) -> None:
    step = Step(kernels)
    step.heads, step.out = (
        torch.randn(40, HEADS + 2 * KV_HEADS, SIZE),
        torch.empty(40, HEADS * SIZE),
    )
    pages = array("q", [3, 1, 4, 0, 5])
    step.attention.lay_out(array("q", [0, 40, 0, 0]), pages, step.out)
    pages[2] = -1
    with pytest.raises(RuntimeError, match=r"a check inside a kernel failed: page >= 0 && page <"):
        step.attend()
    pages[2] = 4
    values = step.heads[0, HEADS + KV_HEADS :].repeat_interleave(HEADS // KV_HEADS, 0)
    torch.testing.assert_close(step.attend()[0], values.flatten())


def test_a_layers_options_are_those_of_its_heads(kernels: Any) -> None:
    sizes: dict[str, Any] = {"num_heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 8}
    sizes |= {"uses_tiles": False, "codes_of": None}
    pair = torch.zeros(2, 12, 8, 16).unbind(0)
    chunked, capped = (0, True, *PLAIN[2:]), (*PLAIN[:3], -1.0, *PLAIN[4:])
    for wrong in (chunked, (-1, *PLAIN[1:]), capped):
        with pytest.raises(ValueError, match="cannot be computed"):
            kernels.Attention([(pair, *wrong)], **sizes)
    with pytest.raises(ValueError, match="3 slopes for 4 heads"):
        kernels.Attention([(pair, *PLAIN[:4], (1.0, 2.0, 3.0), False, 0)], **sizes)
    with pytest.raises(ValueError, match="table is -1"):
        kernels.Attention([(pair, *PLAIN[:6], -1)], **sizes)
    heads, out = torch.zeros(1, 8, 16), torch.empty(1, 64)
    sinks = torch.zeros(4)
    for has_sinks, good, bad in ((False, None, sinks), (True, sinks, None)):
        attention = kernels.Attention([(pair, *PLAIN[:5], has_sinks, 0)], **sizes)
        attention.lay_out(array("q", [0, 1, 0, 0]), array("q", [0]), out)
        attention.attend(0, heads, good)
        with pytest.raises(ValueError, match="this layer has"):
            attention.attend(0, heads, bad)
    for other in (sinks[:3], sinks.double(), torch.zeros(8)[::2]):
        with pytest.raises(ValueError, match=r"sinks are|torch\.float64"):
            attention.attend(0, heads, other)
    with pytest.raises(RuntimeError, match="memory"):
        attention.attend(0, heads, cut_off(torch.zeros(4)))


def test_pages_are_of_the_size_that_is_said(kernels: Any) -> None:
    options: dict[str, Any] = {"num_heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 8}
    options |= {"uses_tiles": False, "codes_of": None}
    good = torch.zeros(12, 8, 16)
    kernels.Attention([((good, good), *PLAIN)], **options)
    for wrong in (good[:, :, :8], good[:, ::2], good.double(), good[:10]):
        with pytest.raises(ValueError, match=r"pages are|torch\.float64"):
            kernels.Attention([((good, wrong), *PLAIN)], **options)
    for heads in (2**60, 2**63 - 2, 0):
        with pytest.raises(ValueError, match=f"{heads} heads for 2 key heads"):
            kernels.Attention([((good, good), *PLAIN)], **{**options, "num_heads": heads})
    for layer in (5, [good], None):
        with pytest.raises(TypeError, match="a layer is a tuple, not"):
            kernels.Attention([layer], **options)
    with pytest.raises(ValueError, match="pages are"):
        kernels.Attention([((torch.tensor(1.0), good), *PLAIN)], **options)
    with pytest.raises(ValueError, match="4 heads for 3 key heads"):
        kernels.Attention([], **{**options, "kv_heads": 3})


def test_codes_have_scales_of_their_shape(kernels: Any) -> None:
    options: dict[str, Any] = {"num_heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 8}
    options |= {"uses_tiles": False, "codes_of": torch.float32}
    codes, scales = torch.zeros(2, 12, 8, 16, dtype=torch.int8), torch.full((2, 12, 8), torch.nan)
    kept = (*codes, *scales)
    attention = kernels.Attention([(kept, *PLAIN)], **options)
    heads, out = torch.randn(9, 8, 16), torch.empty(9, 64)
    attention.lay_out(array("q", [0, 9, 0, 0]), array("q", [4, 1]), out)
    attention.attend(0, heads)
    largest = heads[0, 4:].abs().amax(-1)
    torch.testing.assert_close(scales.view(2, 6, 2, 8)[:, 4, :, 0].flatten(), largest / 127)
    first = heads[0, 6:].repeat_interleave(2, 0).flatten()
    torch.testing.assert_close(out[0], first, atol=float(largest.max()) / 250, rtol=0)
    for wrong in (scales[0, :, :4], scales[0].double(), scales[0, :10]):
        with pytest.raises(ValueError, match="scales are"):
            kernels.Attention([((*codes, scales[0], wrong), *PLAIN)], **options)
    with pytest.raises(ValueError, match="pages are"):
        kernels.Attention([((codes[0].float(), *kept[1:]), *PLAIN)], **options)
    for short in (kept[:2], kept[:3]):
        with pytest.raises(TypeError, match="takes exactly 4"):
            kernels.Attention([(short, *PLAIN)], **options)
    with pytest.raises(ValueError, match=r"torch\.int8 and must be"):
        kernels.Attention([(kept, *PLAIN)], **{**options, "codes_of": torch.int8})
