"""Expectations of ``tests/fixtures/old_caches.json``, and the keys that they were made with.

The script that made them runs with another release and without this library.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FIXTURE = Path(__file__).parents[1] / "fixtures" / "old_caches.json"


@cache
def expected() -> dict[str, Any]:
    """The whole file."""
    content: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))
    return content


def steps_of(name: str) -> list[dict[str, Any]]:
    """The cases of a cache that counts positions."""
    return [case for case in expected()["counted"] if case["cache"] == name]


def counted(begin: int, size: int) -> Tensor:
    """Keys that say their position, from 1 on, and their row, ``[2, 1, S, 2]``."""
    positions = torch.arange(begin, begin + size, dtype=torch.float32) + 1
    return torch.stack((positions, positions + 100)).view(2, 1, size, 1).expand(2, 1, size, 2)


def written(cache: Any, layer: int, begin: int, size: int) -> dict[str, Any]:
    """Write positions to a layer of a cache, theirs or ours: what comes back.

    ``shape`` is that of the keys; ``keys`` are theirs ``[B, T]``, zero where none is written yet.
    """
    keys = counted(begin, size)
    where = {"cache_position": torch.arange(begin, begin + size), "sliding_window": 4}
    found, values = cache.update(keys, -keys, layer, where)
    assert torch.equal(found, -values)
    return {"shape": list(found.shape), "keys": found[:, 0, :, 0].tolist()}


def has_hole(keys: list[list[float]]) -> bool:
    """Return whether a position between others is missing."""
    return any(0.0 in row[: len(row) - row[::-1].index(max(row))] for row in keys)


def waves(begin: int, size: int, head_dim: int) -> Tensor:
    """Keys that differ everywhere, ``[1, 1, S, D]``."""
    positions = torch.arange(begin, begin + size, dtype=torch.float32)
    return torch.cos(positions[:, None] * 1.7 + torch.arange(head_dim) * 0.6)[None, None]


def angles(begin: int, size: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions, ``[S, D]`` each, as rotary embeddings have them."""
    frequencies = 100.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    turns = torch.arange(begin, begin + size)[:, None] * frequencies
    both = torch.cat((turns, turns), dim=-1)
    return both.cos(), both.sin()
