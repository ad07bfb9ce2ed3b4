"""Attention of one row over its pages, written out in plain products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.paged import PagedStorage
    from asyncgen.models.attention.paged.plan import PlacedRow


def attend_plainly(
    row: PlacedRow, storage: PagedStorage, window: int | None, group: int, queries: Tensor
) -> Tensor:
    """Results ``[count, H * D]`` of queries ``[count, H, D]`` over a row's pages in layer 0."""
    pages = storage.layers[0][:, list(row.pages)]
    if not storage.heads_first:
        pages = pages.transpose(2, 3)
    pairs = pages.transpose(1, 2).flatten(2, 3).repeat_interleave(group, dim=1)  # [2, H, T, D]
    results = []
    for number in range(row.count):
        end = row.start + number + 1
        first = 0 if window is None else max(end - window, 0)
        keys, values = pairs[:, :, first:end]
        scores = keys @ queries[number, :, :, None] * queries.shape[2] ** -0.5  # [H, T, 1]
        results.append((scores.softmax(1).transpose(1, 2) @ values).flatten())
    return torch.stack(results)
