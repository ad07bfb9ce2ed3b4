"""Keys and values in 8 bits: the errors of rounding, and attention over them by the plain
formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen import native
from asyncgen.cache.codes import decode, encode
from asyncgen.cache.paged_storage import PagedStorage, page_bytes
from asyncgen.families.config import ModelConfig
from asyncgen.models.attention.paged.torch_attention import TorchAttention
from tests.models.attention.paged.test_native_attention import (
    Pool,
    Row,
    Shape,
    plainly,
    random_heads,
)
from tests.models.build import random_config

needs_kernels = pytest.mark.skipif(not native.supports_packed_pages(), reason="no kernels here")


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 8, 64, 80, 512]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    power=st.integers(-15, 4),
    seed=st.integers(0, 10**6),
)
def test_no_number_is_off_by_more_than_a_254th_of_the_largest(
    size: int, dtype: torch.dtype, power: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    heavy = torch.randn(5, 3, size, generator=generator) ** 3
    numbers = (heavy * 2.0**power).to(dtype)
    codes, scales = encode(numbers)
    assert codes.dtype == torch.int8 and scales.dtype == torch.float32
    assert (codes.abs() <= 127).all()
    found, exact = decode(codes, scales, torch.float32).double(), numbers.double()
    largest = exact.abs().amax(-1, keepdim=True)
    assert ((found - exact).abs() <= largest / 254 * (1 + 1e-5)).all()
    assert (found.abs().amax(-1, keepdim=True) - largest).abs().le(largest * 1e-6).all()


def test_ties_go_to_the_even_code() -> None:
    codes, scales = encode(torch.tensor([127, 0.5, 1.5, -2.5, -3.5, 0.0]))
    assert scales == 1 and codes.tolist() == [127, 0, 2, -2, -4, 0]


def test_tiny_values_encode_to_zero_and_nan_is_kept() -> None:
    numbers = torch.tensor(
        [[0.0, 0.0], [1e-37, 0], [torch.nan, 1], [torch.inf, 1], [3, -torch.inf]]
    )
    codes, scales = encode(numbers)
    assert scales[:2].tolist() == [0, 0] and codes[:2].eq(0).all()
    assert decode(codes, scales, torch.float32)[2:].isnan().all()


@pytest.mark.parametrize("heads_first", [False, True])
def test_bytes_of_packed_pages_are_exact(heads_first: bool) -> None:
    config = ModelConfig.from_hf(random_config("llama", head_dim=64))
    size = page_bytes(config, 8, torch.bfloat16, is_packed=True)
    storage = PagedStorage(
        config, 7, 8, dtype=torch.bfloat16, heads_first=heads_first, is_packed=True
    )
    assert storage.nbytes == 7 * size
    assert size / page_bytes(config, 8, torch.bfloat16) == 68 / 128


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_reads_packed_pages_as_they_were_rounded(
    heads_first: bool, dtype: torch.dtype
) -> None:
    """A chunk without earlier tokens, single tokens page by page, a chunk behind others."""
    kernel = "attend_codes_f32" if dtype == torch.float32 else "attend_codes_bf16"
    shape = Shape(kernel, page_size=4, size=16, window=20)
    raw = random_config("llama", num_attention_heads=6, head_dim=16, num_hidden_layers=1)
    config = ModelConfig.from_hf({**raw, "sliding_window": 20, "model_type": "mistral"})
    pool = Pool.__new__(Pool)
    pool.shape, pool._free = shape, list(range(40))
    pool.storage = PagedStorage(config, 40, 4, dtype=dtype, heads_first=heads_first, is_packed=True)
    pool.spoil(slice(None))
    pool.attention = TorchAttention(config, pool.storage)  # type: ignore[assignment]
    texts = [pool.text(random_heads(shape, length, length)) for length in (30, 43)]
    found: list[list[torch.Tensor]] = [[], []]
    for steps in (((0, 21), (0, 5)), ((21, 1), (5, 30)), ((22, 1), (35, 1)), ((23, 7), (36, 7))):
        rows = [Row(text, *step) for text, step in zip(texts, steps, strict=True)]
        for pieces, result in zip(found, pool.step(rows), strict=True):
            pieces.append(result)
    atol, rtol = (1e-5, 1e-5) if dtype == torch.float32 else (0.05, 2**-6)
    for text, pieces in zip(texts, found, strict=True):
        expected = plainly(shape, text.heads).result
        torch.testing.assert_close(torch.cat(pieces).double(), expected, atol=atol, rtol=rtol)


@needs_kernels
@pytest.mark.parametrize("kernel", ["attend_codes_f32", "attend_codes_bf16"])
def test_our_kernels_write_the_codes_of_the_formula(kernel: str) -> None:
    shape = Shape(kernel, page_size=32, size=80)
    pool = Pool(shape, 9)
    heads = random_heads(shape, 70, 0)
    heads[3] *= 1e-30
    heads[5] *= 1e-37
    heads[7] = 0
    text = pool.text(heads)
    pool.step([Row(text, 0, 70)])
    codes, scales = encode(heads[:, shape.num_heads :].view(70, 2, shape.kv_heads, 80))
    assert pool.storage.scales is not None
    for position in range(70):
        page, place = text.pages[position // 32], position % 32
        assert torch.equal(pool.storage.data[0, :, page, :, place], codes[position])
        assert torch.equal(pool.storage.scales[0, :, page, :, place], scales[position])
