"""Our own attention over pages against plain products, and its promises to the last bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncgen import native
from asyncgen.cache.codes import encode
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.families.config import ModelConfig
from asyncgen.families.plans.attention_options import AttentionOptions, alibi_slopes
from asyncgen.models.attention.paged.native_attention import NativeAttention
from tests.cases import for_each
from tests.models.build import random_config

needs_kernels = pytest.mark.skipif(native.kernels is None, reason="no kernels of our own here")
pytestmark = needs_kernels

DTYPES = [
    dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if native.supports(dtype)
]

OF_NAMES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def kernel_names() -> list[str]:
    """List all kernels that this processor runs."""
    names = [] if native.kernels is None else ["attend_f32", "attend_f16"]
    if torch.bfloat16 in DTYPES:
        names.append("attend_bf16")
        if native.kernels is not None and native.kernels.features()["amx_bf16"]:
            names.append("attend_bf16_amx")
    if native.supports_packed_pages():
        names += [f"attend_codes_{ending}" for ending, one in OF_NAMES.items() if one in DTYPES]
    return names


@dataclass(frozen=True)
class Shape:
    """Sizes of a model's attention.

    Attributes:
        kernel: Which kernel computes.
        kv_heads: K.
        group: Query heads for each of them, G.
        size: D.
        page_size: Keys in a page.
        window: Keys that a query sees, or ``None``.
        is_chunked: Whether those are of its chunk.
        cap: Soft cap, or ``None``.
        has_slopes: Whether distances count.
        has_sinks: Whether there are scores without a key.
    """

    kernel: str
    kv_heads: int = 2
    group: int = 3
    size: int = 64
    page_size: int = 16
    window: int | None = None
    is_chunked: bool = False
    cap: float | None = None
    has_slopes: bool = False
    has_sinks: bool = False

    @property
    def options(self) -> AttentionOptions:
        return AttentionOptions(
            window=self.window,
            cap=self.cap,
            has_sinks=self.has_sinks,
            slopes=alibi_slopes(self.num_heads) if self.has_slopes else None,
            is_chunked=self.is_chunked and self.window is not None,
        )

    @property
    def sinks(self) -> Tensor | None:
        """Make large and small sinks."""
        return torch.linspace(-3, 4, self.num_heads) if self.has_sinks else None

    @property
    def dtype(self) -> torch.dtype:
        return OF_NAMES[self.kernel.removesuffix("_amx").rpartition("_")[2]]

    @property
    def is_packed(self) -> bool:
        return self.kernel.startswith("attend_codes")

    @property
    def num_heads(self) -> int:
        return self.kv_heads * self.group


@dataclass
class Text:
    """A text's heads ``[T, H + 2K, D]`` and its pages."""

    heads: Tensor
    pages: list[int]


@dataclass
class Row:
    """Some tokens of a text."""

    text: Text
    start: int
    count: int

    more = ()

    @property
    def pages(self) -> list[int]:
        return self.text.pages


class Pool:
    """Pages full of NaN, and the attention over them."""

    def __init__(self, shape: Shape, num_pages: int, seed: int = 0) -> None:
        raw = random_config(
            "llama",
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.size,
            num_hidden_layers=1,
        )
        config = replace(ModelConfig.from_hf(raw), attention=(shape.options,))
        self.shape = shape
        self.storage = PagedStorage(
            config, num_pages, shape.page_size, dtype=shape.dtype, is_packed=shape.is_packed
        )
        self.spoil(slice(None))
        assert native.kernels is not None
        features = native.kernels.features() | {"amx_bf16": shape.kernel == "attend_bf16_amx"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native.kernels, "features", lambda: features)
            self.attention = NativeAttention(config, self.storage)
        self._free = random.Random(seed).sample(range(num_pages), num_pages)

    def spoil(self, pages: slice | list[int]) -> None:
        """Fill memory with NaN; of packed pages the scales, and any codes."""
        if self.storage.scales is None:
            self.storage.data[:, :, pages] = torch.nan
        else:
            self.storage.data[:, :, pages] = -77
            self.storage.scales[:, :, pages] = torch.nan

    def text(self, heads: Tensor, shared: list[int] | None = None) -> Text:
        pages = list(shared or [])
        while len(pages) * self.shape.page_size < len(heads):
            pages.append(self._free.pop())
        return Text(heads, pages)

    def step(self, rows: list[Row]) -> list[Tensor]:
        """Compute the results of each row, ``[count, H * D]``."""
        heads = torch.cat([row.text.heads[row.start : row.start + row.count] for row in rows])
        self.attention.lay_out(rows)
        results = self.attention.attend(0, heads, self.shape.sinks).clone()
        return list(torch.split(results, [row.count for row in rows]))

    def run(self, texts: list[Text], chooser: random.Random, most: int) -> list[Tensor]:
        """Bring all texts to their ends in random company and chunks, ``[T, H * D]`` each."""
        found: list[list[Tensor]] = [[] for _ in texts]
        starts = [0] * len(texts)
        while left := [n for n, text in enumerate(texts) if starts[n] < len(text.heads)]:
            chosen = chooser.sample(left, chooser.randint(1, len(left)))
            rows = []
            for number in chosen:
                room = min(len(texts[number].heads) - starts[number], most)
                count = 1 if chooser.random() < 0.3 else chooser.randint(1, room)
                rows.append(Row(texts[number], starts[number], count))
                starts[number] += count
            for number, result in zip(chosen, self.step(rows), strict=True):
                found[number].append(result)
        return [torch.cat(pieces) for pieces in found]


def random_heads(shape: Shape, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (length, shape.num_heads + 2 * shape.kv_heads, shape.size)
    return torch.randn(size, generator=generator).to(shape.dtype)


class Plain(NamedTuple):
    """Results of queries, and the spread of the values that they see, ``[T, H * D]`` each.

    Attributes:
        result: The mean ``o`` of the values by the weights ``p``, in float64.
        spread: Their standard deviation by the same weights, at least ``sum p |v - o|``.
    """

    result: Tensor
    spread: Tensor


def plainly(shape: Shape, heads: Tensor, first: int = 0) -> Plain:
    """Attend from a text's queries from one on, by the plain formula."""
    parts = [shape.num_heads, shape.kv_heads, shape.kv_heads]
    queries, keys, values = torch.split(heads.double().transpose(0, 1), parts)
    if shape.is_packed:
        codes, scales = encode(heads[:, shape.num_heads :].transpose(0, 1))
        keys, values = (codes.double() * scales.double()[..., None]).chunk(2)
    queries = queries[:, first:]
    keys, values = (part.repeat_interleave(shape.group, dim=0) for part in (keys, values))
    positions = torch.arange(len(heads))
    behind = positions[first:, None] - positions
    hidden = behind < 0
    options = shape.options
    firsts = torch.tensor([options.first_seen(at) for at in range(first, len(heads))])
    hidden |= positions < firsts[:, None]
    scores = queries @ keys.transpose(1, 2) / shape.size**0.5
    if options.cap is not None:
        scores = options.cap * (scores / options.cap).tanh()
    if options.slopes is not None:
        scores = scores - torch.tensor(options.slopes).double()[:, None, None] * behind
    scores = scores.masked_fill(hidden, -torch.inf)
    if shape.sinks is not None:
        sinks = shape.sinks.double()[:, None, None].expand(-1, len(firsts), 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)[..., : len(heads)]
    result = weights @ values
    spread = (weights @ values.square() - result.square()).clamp(min=0).sqrt()
    return Plain(*(part.transpose(0, 1).flatten(1) for part in (result, spread)))


def close(shape: Shape, found: Tensor, plain: Plain) -> None:
    expected = plain.result
    if shape.is_packed:  # queries are rounded to 16 bits
        rounded = 0.0 if found.dtype == torch.float32 else torch.finfo(found.dtype).eps / 2
        torch.testing.assert_close(found.double(), expected, atol=5e-4, rtol=rounded)
    elif shape.kernel == "attend_bf16":  # weights are rounded, and the result
        error = (found.double() - expected).abs()
        bound = plain.spread / (2**8 - 1) + expected.abs() * 2**-8 + 2e-5
        assert not found.isnan().any()
        assert (error <= bound).all(), f"{(error - bound).max()} over the bound"
    elif found.dtype == torch.bfloat16:  # rounded once, in the end
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2**-8)
    elif found.dtype == torch.float16:  # likewise, and nothing before
        torch.testing.assert_close(found.double(), expected, atol=3e-6, rtol=2**-11 + 1e-5)
    else:
        torch.testing.assert_close(found.double(), expected, atol=3e-6, rtol=1e-5)


shapes = st.builds(
    Shape,
    kernel=st.sampled_from(kernel_names() or [""]),
    kv_heads=st.sampled_from([1, 2, 3]),
    group=st.integers(1, 8),
    size=st.sampled_from([2, 8, 16, 32, 48, 64, 70, 80, 96, 128, 250, 256, 320, 512]),
    page_size=st.sampled_from([1, 7, 16, 32, 48, 64]),
    window=st.sampled_from([None, None, 1, 5, 40, 300]),
    is_chunked=st.sampled_from([False, False, True]),
    cap=st.sampled_from([None, None, 0.5, 30.0]),
    has_slopes=st.sampled_from([False, False, True]),
    has_sinks=st.sampled_from([False, False, True]),
)


@settings(max_examples=150, deadline=None)
@given(
    shape=shapes,
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    most=st.sampled_from([1, 8, 90]),
    seed=st.integers(0, 10**6),
)
def test_any_mix_equals_plain_products(
    shape: Shape, lengths: list[int], most: int, seed: int
) -> None:
    pool = Pool(shape, 460 // shape.page_size + 10, seed)
    texts = [
        pool.text(random_heads(shape, length, seed + number))
        for number, length in enumerate(lengths)
    ]
    for text, found in zip(texts, pool.run(texts, random.Random(seed), most), strict=True):
        close(shape, found, plainly(shape, text.heads))


@pytest.mark.gate
@settings(max_examples=15, deadline=None)
@given(shape=shapes, length=st.integers(250, 900), seed=st.integers(0, 10**6))
def test_long_texts_equal_plain_products(shape: Shape, length: int, seed: int) -> None:
    shape = replace(shape, kv_heads=1)
    pool = Pool(shape, 2000 // shape.page_size + 10, seed)
    texts = [pool.text(random_heads(shape, length + n, seed + n)) for n in range(2)]
    for text, found in zip(texts, pool.run(texts, random.Random(seed), 400), strict=True):
        close(shape, found, plainly(shape, text.heads))


@pytest.mark.gate
@settings(max_examples=20, deadline=None)
@given(shape=shapes, length=st.integers(1, 700), seed=st.integers(0, 10**6))
def test_other_rows_chunks_and_threads_change_no_bit(shape: Shape, length: int, seed: int) -> None:
    heads = random_heads(shape, length, seed)
    others = [random_heads(shape, n, seed + n) for n in (1, 40, 333)]
    results = []
    threads = torch.get_num_threads()
    try:
        for number, most in enumerate((length, 1000, 50, 3 if length < 100 else 99)):
            torch.set_num_threads(1 + number % 2)
            pool = Pool(shape, 1100 // shape.page_size + 10, seed + number)
            texts = [pool.text(one) for one in [heads, *others[: number or None]]]
            if number == 0:
                results.append(pool.step([Row(texts[0], 0, length)])[0])
            else:
                results.append(pool.run(texts, random.Random(seed + number), most)[0])
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert torch.equal(result, results[0])


@pytest.mark.gate
@settings(max_examples=30, deadline=None)
@given(
    shape=shapes,
    behind=st.integers(0, 2000),
    count=st.integers(1, 600),
    seed=st.integers(0, 10**6),
)
def test_a_chunk_is_what_its_tokens_are_alone(
    shape: Shape, behind: int, count: int, seed: int
) -> None:
    compare_with_alone(shape, behind, count, seed)


@for_each("kernel", kernel_names())
@for_each("count", [32, 33, 48, 96, 97])
def test_as_many_queries_as_are_few_and_one_more(kernel: str, count: int) -> None:
    compare_with_alone(Shape(kernel, group=1, page_size=32), behind=300, count=count, seed=count)


def compare_with_alone(shape: Shape, behind: int, count: int, seed: int) -> None:
    """Compare some tokens behind a text in one step with some of them in steps of their own."""
    shape = replace(shape, kv_heads=1, page_size=max(shape.page_size, 7))
    chooser = random.Random(seed)
    length = behind + count
    heads = random_heads(shape, length, seed)
    alone = sorted({behind, length - 1, *(chooser.randrange(behind, length) for _ in range(6))})
    found = {}
    threads = torch.get_num_threads()
    try:
        for number in range(2):
            torch.set_num_threads(1 + number)
            pool = Pool(shape, length // shape.page_size + 1, seed + number)
            text = pool.text(heads)
            pieces = [(0, behind), (behind, length)]
            if number == 1:  # the chosen tokens alone, and what lies between them
                ends = sorted({0, behind, length, *alone, *(token + 1 for token in alone)})
                pieces = list(zip(ends, ends[1:], strict=False))
            found[number] = torch.cat(
                [pool.step([Row(text, a, b - a)])[0] for a, b in pieces if a < b]
            )
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    close(shape, found[0][behind:], plainly(shape, heads, behind))


@for_each("kernel", kernel_names())
@for_each("window", [None, 100])
def test_later_tokens_stay_out_of_a_chunk(kernel: str, window: int | None) -> None:
    shape = Shape(kernel, window=window)
    pool = Pool(shape, 60)
    text = pool.text(random_heads(shape, 900, 0))
    pool.step([Row(text, 0, 300)])
    # What was never written is NaN, and a window has left the first pages.
    pool.spoil(text.pages[300 // shape.page_size + 1 :])
    if window is not None:
        pool.spoil(text.pages[: 200 // shape.page_size])
    found = pool.step([Row(text, 300, 257)])[0]
    close(shape, found, plainly(shape, text.heads[:557], 300))


@for_each("kernel", kernel_names())
@for_each("page_size", [7, 32])
def test_rows_read_shared_pages(kernel: str, page_size: int) -> None:
    shape = Shape(kernel, page_size=page_size)
    pool = Pool(shape, 100)
    common = random_heads(shape, 9 * page_size, 0)
    first = pool.text(torch.cat([common, random_heads(shape, 20, 1)]))
    second = pool.text(torch.cat([common, random_heads(shape, 31, 2)]), first.pages[:9])
    pool.step([Row(first, 0, len(common))])
    found = pool.step([Row(second, len(common), 31), Row(first, len(common), 20)])
    for text, result in zip((second, first), found, strict=True):
        close(shape, result, plainly(shape, text.heads, len(common)))


@for_each("kernel", kernel_names())
@for_each("value", [torch.nan, torch.inf])
@for_each("count", [1, 13])
def test_a_row_that_is_no_number_stays_alone(kernel: str, value: float, count: int) -> None:
    shape = Shape(kernel)
    results = []
    for broken in (False, True):
        pool = Pool(shape, 60)
        texts = [pool.text(random_heads(shape, length, length)) for length in (30, 290, 25)]
        if broken:
            texts[1].heads[-count - 2 :] = value
        pool.step([Row(text, 0, len(text.heads) - count) for text in texts])
        results.append(pool.step([Row(text, len(text.heads) - count, count) for text in texts]))
    assert results[1][1].isnan().all()
    for number in (0, 2):
        assert torch.equal(results[1][number], results[0][number])


@for_each("kernel", kernel_names())
def test_pages_outside_a_window_may_belong_to_others(kernel: str) -> None:
    shape = Shape(kernel, window=20, page_size=8)
    pool = Pool(shape, 60)
    text = pool.text(random_heads(shape, 70, 0))
    pool.step([Row(text, 0, 60)])
    pool.spoil(text.pages[:5])
    close(shape, pool.step([Row(text, 60, 1)])[0], plainly(shape, text.heads[:61], 60))


@for_each("kernel", kernel_names())
def test_a_step_without_memory_for_its_results_spoils_no_later_one(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> Tensor:
        raise MemoryError

    shape = Shape(kernel)
    pool = Pool(shape, 4)
    text = pool.text(random_heads(shape, 6, 0))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", no_memory)
        with pytest.raises(MemoryError):
            pool.attention.lay_out([Row(text, 0, 6)])
    close(shape, pool.step([Row(text, 0, 6)])[0], plainly(shape, text.heads))


@pytest.mark.parametrize("dtype", DTYPES)
def test_serves_pages_in_the_layout_of_the_kernel(dtype: torch.dtype) -> None:
    config = ModelConfig.from_hf(random_config("llama"))
    assert NativeAttention.serves(PagedStorage(config, 1, 4, dtype=dtype))
    assert not NativeAttention.serves(PagedStorage(config, 1, 4, heads_first=False))
    assert not NativeAttention.serves(PagedStorage(config, 1, 4, dtype=torch.float64))
    large = ModelConfig.from_hf(random_config("llama", head_dim=528))
    assert not NativeAttention.serves(PagedStorage(large, 1, 4, dtype=dtype))
