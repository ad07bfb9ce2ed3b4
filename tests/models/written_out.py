"""Attention of one row over its pages, written out in plain products."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from asyncgen.families.plans.attention_options import AttentionOptions, alibi_slopes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.paged_storage import PagedStorage
    from asyncgen.models.attention.paged.packed_rows import PlacedRow


def some_options(
    heads: int, windows: Sequence[int | None], *, is_plain: bool = False
) -> st.SearchStrategy[AttentionOptions]:
    """Options of a layer of so many heads, mostly few at a time.

    Args:
        heads: Query heads, H.
        windows: What a window may be.
        is_plain: Whether nothing but windows differs.
    """
    slopes, nothing = alibi_slopes(heads), st.none()
    return st.builds(
        lambda window, is_chunked, **others: AttentionOptions(
            window=window, is_chunked=is_chunked and window is not None, **others
        ),
        window=st.sampled_from(windows),
        is_chunked=st.sampled_from([False, False, not is_plain]),
        scale=st.sampled_from([None, None, 0.3]),
        cap=nothing if is_plain else st.sampled_from([None, None, 0.5, 20.0]),
        has_sinks=st.sampled_from([False, False, not is_plain]),
        slopes=nothing if is_plain else st.sampled_from([None, None, slopes]),
    )


def sinks_of(options: AttentionOptions, heads: int) -> Tensor | None:
    """Large and small sinks, where the options say that there are any, ``[H]``."""
    return torch.linspace(-3, 4, heads) if options.has_sinks else None


def weigh_plainly(
    scores: Tensor, behind: Tensor, options: AttentionOptions, hidden: Tensor | None = None
) -> Tensor:
    """Weights of unscaled scores ``[..., H, S, T]``, by the formula.

    Args:
        scores: Products of queries and keys whose heads are of size 1 / scale².
        behind: How far keys are behind the query, ``[S, T]``; negative for later ones.
        options: The layer's, with a scale; windows are up to ``hidden``.
        hidden: Which scores do not count.
    """
    heads = scores.shape[-3]
    assert options.scale is not None
    scores = scores * options.scale
    if options.cap is not None:
        scores = options.cap * (scores / options.cap).tanh()
    if options.slopes is not None:
        slopes = torch.tensor(options.slopes, dtype=scores.dtype)
        scores = scores - slopes[:, None, None] * behind
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    sinks = sinks_of(options, heads)
    if sinks is None:
        return scores.softmax(-1)
    sinks = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]


def attend_plainly(
    row: PlacedRow, storage: PagedStorage, options: AttentionOptions, group: int, queries: Tensor
) -> Tensor:
    """Results ``[count, H * D]`` of queries ``[count, H, D]`` over a row's pages in layer 0."""
    if options.scale is None:
        options = replace(options, scale=queries.shape[2] ** -0.5)
    pages = storage.layers[0][:, list(row.pages)]
    if not storage.heads_first:
        pages = pages.transpose(2, 3)
    pairs = pages.transpose(1, 2).flatten(2, 3).repeat_interleave(group, dim=1)  # [2, H, T, D]
    results = []
    for number in range(row.count):
        end = row.start + number + 1
        first = options.first_seen(end - 1)
        keys, values = pairs[:, :, first:end]
        scores = queries[number, :, None] @ keys.transpose(1, 2)  # [H, 1, T]
        behind = torch.arange(end - first - 1, -1, -1)[None]
        results.append((weigh_plainly(scores, behind, options) @ values).flatten())
    return torch.stack(results)
