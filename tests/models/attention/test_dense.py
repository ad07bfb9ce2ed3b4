"""`DenseAttention` against attention written out with ``einsum``, and the laws of masks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.sliding import SlidingWindowCache
from asyncgen.cache.static import StaticCache
from asyncgen.families.config import ModelConfig
from asyncgen.families.plans.attention_options import AttentionOptions
from asyncgen.models.attention.dense import DenseAttention
from tests.models.build import random_config
from tests.models.written_out import sinks_of, some_options, weigh_plainly

D = 8

PLAIN = AttentionOptions()


def config(heads: int, kv_heads: int, options: AttentionOptions = PLAIN) -> ModelConfig:
    made = ModelConfig.from_hf(
        random_config(
            "llama",
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=D,
            num_hidden_layers=1,
        )
    )
    return replace(made, attention=(options,))


def written_out(
    heads: Tensor,
    count: int,
    kv_heads: int,
    options: AttentionOptions,
    padding: Tensor | None,
) -> Tensor:
    """Attend whole rows ``[B, T, H + 2K, D]``, one query at a time: ``[B, T, H * D]``."""
    queries, keys, values = torch.split(heads, [count, kv_heads, kv_heads], dim=2)
    group = count // kv_heads
    keys, values = (part.repeat_interleave(group, dim=2) for part in (keys, values))
    scores = torch.einsum("bqhd,bkhd->bhqk", queries, keys)
    rows, length = heads.shape[:2]
    hidden = torch.zeros(rows, 1, length, length, dtype=torch.bool)
    for row, query, key in product(range(rows), range(length), range(length)):
        before = 0 if padding is None else int(padding[row].sum())
        first = options.first_seen(max(query - before, 0)) + before
        hidden[row, 0, query, key] = not first <= key <= query
    behind = torch.arange(length)[:, None] - torch.arange(length)
    scale = D**-0.5 if options.scale is None else options.scale
    weights = weigh_plainly(scores, behind, replace(options, scale=scale), hidden).nan_to_num()
    return torch.einsum("bhqk,bkhd->bqhd", weights, values).flatten(2)


def in_chunks(
    attention: DenseAttention, heads: Tensor, sizes: list[int], sinks: Tensor | None = None
) -> Tensor:
    """Attend rows that arrive in pieces through the context."""
    rows, start, pieces = heads.shape[0], 0, []
    for size in sizes:
        piece = heads[:, start : start + size].reshape(rows * size, -1, D)
        attention.begin(rows, size)
        pieces.append(attention.attend(0, piece, sinks).view(rows, size, -1))
        start += size
    return torch.cat(pieces, dim=1)


def pieces_of(total: int) -> st.SearchStrategy[list[int]]:
    """Cut a sequence in several ways, single tokens at its end."""
    return st.integers(0, total).flatmap(
        lambda head: st.just([head] * bool(head) + [1] * (total - head))
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    ratio=st.sampled_from([(4, 4), (4, 2), (6, 2), (3, 1)]),
    drawn=st.data(),
    sizes=st.one_of(pieces_of(9), st.sampled_from([[4, 5], [3, 3, 3], [9], [5, 1, 3]])),
    pad=st.booleans(),
    kind=st.sampled_from(["dynamic", "static", "sliding"]),
    collects=st.booleans(),
    seed=st.integers(0, 9),
)
def test_it_equals_attention_written_out(
    rows: int,
    ratio: tuple[int, int],
    drawn: st.DataObject,
    sizes: list[int],
    pad: bool,
    kind: str,
    collects: bool,
    seed: int,
) -> None:
    count, kv_heads = ratio
    torch.manual_seed(seed)
    options = drawn.draw(some_options(count, [3 if kind == "sliding" else None, 1, 3, 50]))
    setup = config(count, kv_heads, options)
    heads = torch.randn(rows, 9, count + 2 * kv_heads, D)
    mask = None
    if pad:
        mask = torch.ones(rows, 9, dtype=torch.long)
        for row in range(rows):
            mask[row, : row + 1] = 0
    cache: Cache = DynamicCache()
    if kind != "dynamic":
        made = StaticCache if kind == "static" else SlidingWindowCache
        cache = made(setup, max_batch_size=rows, max_cache_len=9)
    weights: list[Tensor] | None = [] if collects else None
    attention = DenseAttention(setup, cache, mask, collect_attentions=weights)
    attended = in_chunks(attention, heads, sizes, sinks_of(options, count))
    padding = None if mask is None else mask == 0
    expected = written_out(heads, count, kv_heads, options, padding)
    assert attended.isfinite().all()
    visible = torch.ones(rows, 9, dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(attended[visible], expected[visible], atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", [torch.long, torch.bool, torch.float32])
def test_a_mask_of_the_prompt_is_enough(kind: torch.dtype) -> None:
    setup = config(4, 2)
    heads = torch.randn(2, 6, 8, D)
    short = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]).to(kind)
    long = torch.nn.functional.pad(short, (0, 2), value=1)
    one = in_chunks(DenseAttention(setup, DynamicCache(), short), heads, [4, 1, 1])
    other = in_chunks(DenseAttention(setup, DynamicCache(), long), heads, [4, 1, 1])
    assert torch.equal(one, other)


def test_a_mask_without_padding_costs_nothing() -> None:
    setup = config(4, 2)
    heads = torch.randn(1, 3, 8, D)
    ones = torch.ones(1, 3)
    masked = in_chunks(DenseAttention(setup, DynamicCache(), ones), heads, [3])
    plain = in_chunks(DenseAttention(setup, DynamicCache()), heads, [3])
    assert torch.equal(masked, plain)


def test_a_new_context_continues_a_cache() -> None:
    setup, cache = config(4, 2), DynamicCache()
    heads = torch.randn(1, 5, 8, D)
    first = in_chunks(DenseAttention(setup, cache), heads[:, :3], [3])
    second = in_chunks(DenseAttention(setup, cache), heads[:, 3:], [1, 1])
    whole = in_chunks(DenseAttention(setup, DynamicCache()), heads, [5])
    torch.testing.assert_close(torch.cat((first, second), 1), whole, atol=2e-6, rtol=0)
    assert DenseAttention(setup, cache).cache is cache


@pytest.mark.parametrize("sizes", [[6], [4, 1, 1], [3, 3]])
def test_weights_are_collected_and_change_nothing(sizes: list[int]) -> None:
    setup = config(4, 2, AttentionOptions(window=4))
    heads = torch.randn(2, 6, 8, D)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    weights: list[Tensor] = []
    open_ = DenseAttention(setup, DynamicCache(), mask, collect_attentions=weights)
    closed = DenseAttention(setup, DynamicCache(), mask)
    one, other = in_chunks(open_, heads, sizes), in_chunks(closed, heads, sizes)
    torch.testing.assert_close(one[0, 1:], other[0, 1:], atol=2e-6, rtol=0)
    torch.testing.assert_close(one[1], other[1], atol=2e-6, rtol=0)
    assert len(weights) == len(sizes)
    torch.testing.assert_close(weights[-1].sum(-1), torch.ones(2, 4, sizes[-1]))


def test_reused_memory_does_not_leak_between_layers() -> None:
    setup, cache = config(4, 2), DynamicCache()
    attention = DenseAttention(setup, cache)
    memory = torch.randn(1, 8, D)
    first = memory.clone()
    attention.begin(1, 1)
    attention.attend(0, memory)
    memory.normal_()
    attention.begin(1, 1)
    attention.attend(0, memory)
    keys, values = cache[0]
    assert torch.equal(keys[0, :, 0], first[0, 4:6])
    assert torch.equal(values[0, :, 0], first[0, 6:8])
    assert torch.equal(keys[0, :, 1], memory[0, 4:6])
