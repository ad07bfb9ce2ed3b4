"""Attention of padded rows over a `Cache`, and the interface that models use for any attention.

A model computes queries, keys and values of a step's tokens and hands them to a context. The
context knows where earlier keys lie, which of them a query sees, and how many rows there are. This
module knows no weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from asyncgen.families.plans.attention_options import number_kinds
from asyncgen.models.attention.eager import attend_eager, hide_unseen

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.attention_options import AttentionOptions


class AttentionContext(Protocol):
    """Computes the attention of one forward pass after another, and owns the keys and values.

    Attributes:
        compiled: Our kernel over the laid-out pages, for a model that computes all its layers in
            one call; ``None`` if attention is computed in another way.
    """

    compiled: Any | None

    def begin(self, rows: int, length: int) -> None:
        """Prepare a forward pass of ``rows`` times ``length`` tokens, B and S."""

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Store this layer's new keys and values, and let the queries attend.

        Args:
            layer: Number of the layer; layers call in order from 0.
            heads: ``[N, H + 2K, D]`` with N = B · S tokens, row after row: for each token the H
                query heads, then K keys, then K values. Queries and keys are rotated already. The
                model may reuse this memory for the next layer.
            sinks: ``[H]`` float32, if the layer's options have sinks.

        Returns:
            ``[N, H * D]``, contiguous; query heads are grouped by key head, as in checkpoints.
        """


class DenseAttention:
    """Attention of rows of equal length with a cache, left-padded if they differ.

    One object serves a whole sequence: each forward pass appends to the cache. Positions beyond the
    end of the mask are visible, so a mask of the prompt is enough.

    Attributes:
        cache: The cache that grows.
    """

    compiled = None

    def __init__(
        self,
        config: ModelConfig,
        cache: Cache,
        attention_mask: Tensor | None = None,
        *,
        collect_attentions: list[Tensor] | None = None,
    ) -> None:
        """Continue at the end of a cache.

        Args:
            config: The model's.
            cache: Keys and values so far; grows with every forward pass.
            attention_mask: ``[B, T]``, non-zero (or true) for tokens, zero for padding, from
                position 0 of the cache. ``None``: no padding.
            collect_attentions: Gets the attention weights ``[B, H, S, T]`` of every layer. Then
                plain products replace the fused kernel.
        """
        self.cache = cache
        self._config = config
        self._layers = cache.attention_layers(config.num_hidden_layers)
        self._first = config.attending[0]
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._group = self._heads // self._kv_heads
        self._head_dim = config.head_dim
        self._scales = [options.scale for options in config.attention]
        windows = [options.window for options in config.attention]
        self._windows = windows if any(windows) else None
        self._options = config.attention
        self._kinds, self._kind_of = number_kinds([each.kind for each in config.attention])
        # Layers that one product of the new token and the cached keys cannot compute.
        self._masked = [not options.is_fusable for options in config.attention]
        hidden = None if attention_mask is None else attention_mask == 0
        self._padding = None if hidden is None or not bool(hidden.any()) else hidden  # [B, T]
        self._weights = collect_attentions
        self._bound: Tensor | None = None
        self._rows = self._length = 0

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`."""
        self._start = self._layers[self._first].length
        self._end = self._start + length
        if rows != self._rows or length != self._length:
            self._rows, self._length, self._bound = rows, length, None
        self._masks: dict[int, Tensor | None] = {}  # by the number of a kind
        self._distances: dict[int, Tensor] = {}
        # The hot path: one new token per row, nothing hidden from it but what a window excludes.
        self._plain = length == 1 and self._padding is None and self._weights is None

    def attend(self, layer: int, heads: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `AttentionContext`."""
        if heads is not self._bound:
            self._bind(heads)
        window = None if self._windows is None else self._windows[layer]
        first = 0 if window is None else max(self._start + 1 - window, 0)
        keys, values = self._layers[layer].append(self._pair, first)
        if not self._plain or self._masked[layer]:
            return self._attend_masked(heads, keys, values, first, layer, sinks)
        queries = self._queries
        if queries is None:
            queries = heads[:, : self._heads].reshape(-1, 1, self._group, self._head_dim)
        # One batch entry per key head, so that the output comes out in the order of the heads.
        scale = self._scales[layer]
        attended = scaled_dot_product_attention(queries, keys, values, scale=scale)
        return attended.view(self._rows, -1)  # from [B * K, 1, G, D]

    def _bind(self, heads: Tensor) -> None:
        """Make the views of a step's memory once; most models pass the same memory to every
        layer."""
        rows, length, kv_heads, size = self._rows, self._length, self._kv_heads, self._head_dim
        self._bound = heads
        pair = heads.view(rows, length, -1, size)[:, :, self._heads :]
        pair = pair.view(rows, length, 2, kv_heads, size)
        self._pair = pair.permute(2, 0, 3, 1, 4)  # [2, B, K, S, D]
        self._queries: Tensor | None = None
        if rows == 1 and length == 1:
            self._queries = heads[:, : self._heads].view(kv_heads, 1, self._group, size)

    def _attend_masked(
        self,
        heads: Tensor,
        keys: Tensor,
        values: Tensor,
        first: int,
        layer: int,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend with several tokens a row, hidden keys, or options that torch's fused kernels
        lack."""
        rows, length, size = self._rows, self._length, self._head_dim
        queries = heads.view(rows, length, -1, size)[:, :, : self._heads].transpose(1, 2)
        keys = keys.view(rows, self._kv_heads, -1, size)  # [B, K, T, D]
        values = values.view(rows, self._kv_heads, -1, size)
        options, kind, collect = self._options[layer], self._kind_of[layer], self._weights
        if kind not in self._masks:
            self._masks[kind] = self._make_mask(first, self._kinds[kind], heads)
        mask = self._masks[kind]
        if options.is_plain:
            causal = mask is None and length > 1 and not options.is_bidirectional
            scale = options.scale
            attended = attend(queries, keys, values, mask, scale, collect, is_causal=causal)
        else:
            attended = attend_eager(
                queries,
                keys,
                values,
                options,
                mask=mask,
                distances=None if options.slopes is None else self._away(first, options, heads),
                sinks=sinks,
                collect=collect,
            )
        return attended.transpose(1, 2).reshape(rows * length, -1)

    def _make_mask(self, first: int, kind: AttentionOptions, like: Tensor) -> Tensor | None:
        """Make the mask that is added to scores, ``[1 or B, 1, S, T]``.

        ``None`` means that nothing is added, or, for plain options of one direction, that the
        kernel masks later keys itself.
        """
        window = kind.window
        if not kind.is_plain and self._length == 1 and self._padding is None:
            if not kind.is_chunked:
                return None
        # A window hides keys only once the last query is beyond it.
        slides = window is not None and self._end > window
        has_plain_mask = self._padding is None and not slides and self._start == 0
        if has_plain_mask and self._weights is None and kind.is_plain:
            return None
        return additive_mask(self._hidden(first, kind, like), like.dtype)

    def _hidden(self, first: int, kind: AttentionOptions, like: Tensor) -> Tensor:
        """Mark the keys that each query does not see, bool ``[1 or B, 1, S, T]``."""
        queries = torch.arange(self._start, self._end, dtype=torch.int64, device=like.device)[
            :, None
        ]
        keys = torch.arange(first, self._end, dtype=torch.int64, device=like.device)
        if self._padding is None:
            return hide_unseen(queries, keys, kind)[None, None]
        padding = self._padding_so_far(like)
        if kind.is_chunked:  # chunks begin with the text, not with its padding
            before = padding.cumprod(1).sum(1)[:, None, None, None]
            queries, keys = queries - before, keys - before  # [B, 1, S, 1], [B, 1, 1, T]
        hidden = hide_unseen(queries, keys, kind)
        return hidden.view(-1, 1, *hidden.shape[-2:]) | padding[:, None, None, first:]

    def _padding_so_far(self, like: Tensor) -> Tensor:
        """Mark hidden positions up to the end, bool ``[B, T]``; those behind the mask are seen."""
        assert self._padding is not None
        padding = self._padding[:, : self._end].to(like.device)
        return torch.nn.functional.pad(padding, (0, self._end - padding.shape[1]))

    def _away(self, first: int, options: AttentionOptions, like: Tensor) -> Tensor:
        """Subtract places of queries from those of keys, ``[1 or B, 1, S, T]`` float32."""
        if first not in self._distances:
            if self._padding is None or options.spans_gaps:
                places = torch.arange(self._end, dtype=torch.int64, device=like.device)[None]
            else:
                places = (~self._padding_so_far(like)).cumsum(1)
            away = places[:, None, None, first:] - places[:, None, self._start :, None]
            self._distances[first] = away.float()
        return self._distances[first]


def additive_mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Make a mask that is added to scores, from the hidden pairs of queries and keys."""
    # The least finite number, not minus infinity: a padding query, from which all keys are hidden,
    # then gets a meaningless average instead of NaN.
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float | None,
    collect: list[Tensor] | None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """Compute attention ``[B, H, S, D]``; by plain products if its weights are wanted.

    Args:
        queries: ``[B, H, S, D]``.
        keys: ``[B, K, T, D]``.
        values: ``[B, K, T, D]``.
        mask: Added to the scores.
        scale: Factor on the scores; ``None``: one over the root of D.
        collect: Gets the weights ``[B, H, S, T]``.
        is_causal: True if the kernel hides later keys itself; only without a mask and without
            weights.
    """
    group = queries.shape[1] // keys.shape[1]
    if collect is None:
        return scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=group > 1,
        )
    keys = keys.repeat_interleave(group, dim=1)
    values = values.repeat_interleave(group, dim=1)
    scale = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
    scores = queries @ keys.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(queries.dtype)
    collect.append(weights)
    return weights @ values
