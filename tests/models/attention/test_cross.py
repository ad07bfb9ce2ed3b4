"""Cross-attention against a plain formula, and refusals of rows that do not fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from asyncgen.models.attention.cross import Encoded, EncoderAttention, EncoderDecoderAttention
from asyncgen.models.attention.relative import RelativeBias

if TYPE_CHECKING:
    from torch import Tensor

HEADS, SIZE = 2, 3
CONFIG = ModelConfig.from_hf(
    {"model_type": "t5", "num_heads": HEADS, "d_kv": SIZE, "d_model": 5, "num_layers": 1}
)


def bias() -> RelativeBias:
    return RelativeBias(torch.randn(8, HEADS), both_ways=True, max_distance=20)


def formula(queries: Tensor, keys: Tensor, values: Tensor, added: Tensor) -> Tensor:
    """Attend ``[B, H, S, D]`` without a scale."""
    return (queries @ keys.transpose(-1, -2) + added).softmax(-1) @ values


def context(encoded: Encoded, **options: Any) -> EncoderDecoderAttention:
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    return EncoderDecoderAttention(CONFIG, cache, bias=bias(), encoded=encoded, **options)


@pytest.mark.parametrize("padded", [False, True])
def test_every_token_sees_every_token(padded: bool) -> None:
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[1, 2:] = not padded
    table, weights = bias(), list[torch.Tensor]()
    heads = torch.randn(8, 3 * HEADS, SIZE)
    queries, keys, values = heads.view(2, 4, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    added = table.rows(0, 4).masked_fill(~mask[:, None, None], -1e30)
    expected = formula(queries, keys, values, added).transpose(1, 2).reshape(8, -1)
    for collect in (None, weights):
        attention = EncoderAttention(CONFIG, table, mask if padded else None, collect)
        attention.begin(2, 4)
        torch.testing.assert_close(attention.attend(0, heads), expected)
    assert weights[0].shape == (2, HEADS, 4, 4)
    assert bool((weights[0][1, :, :, 2:] == 0).all()) is padded


@pytest.mark.parametrize("copies", [1, 3])
def test_rows_attend_to_their_text(copies: int) -> None:
    states, mask = torch.randn(2, 4, 5), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]).bool()
    project = torch.randn(5, 2 * HEADS * SIZE)
    calls: list[int] = []

    def pair(hidden: Tensor) -> Tensor:
        calls.append(hidden.shape[0])
        return hidden @ project

    attention = context(Encoded(states, mask))
    keys, values = (states @ project).view(2, 4, 2, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    for length in (3, 1):
        attention.begin(2 * copies, length)
        queries = torch.randn(2 * copies, length, HEADS, SIZE)
        found = attention.cross_attend(0, queries.view(-1, HEADS * SIZE), pair)
        for row in range(2 * copies):
            text = row // copies
            added = torch.zeros(4).masked_fill(~mask[text], -1e30)
            expected = formula(queries[row].transpose(0, 1), keys[text], values[text], added)
            rows = found.view(2 * copies, length, HEADS, SIZE)[row].transpose(0, 1)
            torch.testing.assert_close(rows, expected)
    assert calls == [8]


def test_rows_that_fit_no_text_are_refused() -> None:
    attention = context(Encoded(torch.randn(2, 4, 5)))
    attention.begin(3, 1)
    with pytest.raises(InvalidRequestError, match="2 texts"):
        attention.cross_attend(0, torch.randn(3, HEADS * SIZE), lambda hidden: hidden)


def test_a_cache_of_other_rows_is_refused() -> None:
    attention = context(Encoded(torch.randn(2, 4, 5)))
    for rows in (2, 4):
        attention.begin(rows, 1)
        queries = torch.randn(rows, HEADS * SIZE)
        if rows == 2:
            attention.cross_attend(0, queries, lambda hidden: torch.randn(len(hidden), 12))
            continue
        with pytest.raises(InvalidRequestError, match="2 encoder rows"):
            attention.cross_attend(0, queries, lambda hidden: hidden)
