"""Relative positions: a bias on the attention scores that depends on the distance alone.

Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.1: near distances have
a row of the table each, farther ones share rows, in steps that grow with the logarithm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROOM = 128


def bucket(distances: Tensor, *, both_ways: bool, num_buckets: int, max_distance: int) -> Tensor:
    """Give the rows of the table for distances.

    Args:
        distances: Position of the key less that of the query, int64, any shape.
        both_ways: True if later keys have half of the rows; else they count as distance 0.
        num_buckets: Rows of the table, at least 4.
        max_distance: Distance from which all share the last row.

    Returns:
        Row numbers, int64, in the same shape.
    """
    first = torch.zeros_like(distances)
    if both_ways:
        num_buckets //= 2
        first = (distances > 0) * num_buckets
        away = distances.abs()
    else:
        away = (-distances).clamp(min=0)
    exact = num_buckets // 2
    # The logarithm of a zero is never used, but must not be converted to an integer.
    growth = torch.log(away.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    shared = (exact + (growth * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return first + torch.where(away < exact, away, shared)


class RelativeBias:
    """Biases of one stack, computed for each distance once.

    Queries and keys in a row need the biases of neighbouring distances, so a step's biases are a
    view of those that are there.
    """

    def __init__(self, table: Tensor, *, both_ways: bool, max_distance: int) -> None:
        """Begin with nothing computed.

        Args:
            table: Biases ``[buckets, H]``, in the dtype of the scores.
            both_ways: True if queries see later keys.
            max_distance: Distance from which all share the last bucket.
        """
        self._table = table
        self._both_ways = both_ways
        self._max_distance = max_distance
        self._past = 0  # distances -past to past are there
        self._values: Tensor | None = None  # [1, H, 1, 2 * past + 1]

    def rows(self, start: int, end: int) -> Tensor:
        """Give the biases of the queries ``start`` to ``end`` for the keys 0 to ``end``.

        Returns:
            ``[1, H, S, T]`` with S = ``end - start`` and T = ``end``; read-only.
        """
        if end > self._past or self._values is None:
            self._grow(end)
        assert self._values is not None
        centre = self._past
        if end == start + 1:
            return self._values[..., centre - start : centre + 1]
        offsets = torch.arange(end, dtype=torch.int64, device=self._table.device)
        places = centre + offsets - offsets[start:, None]  # [S, T]
        return self._values[:, :, 0, places]

    def _grow(self, end: int) -> None:
        past = max(end, 2 * self._past, _ROOM)
        distances = torch.arange(-past, past + 1, dtype=torch.int64, device=self._table.device)
        rows = bucket(
            distances,
            both_ways=self._both_ways,
            num_buckets=self._table.shape[0],
            max_distance=self._max_distance,
        )
        with torch.inference_mode(False):
            self._values = self._table[rows].t().contiguous()[None, :, None]
        self._past = past
