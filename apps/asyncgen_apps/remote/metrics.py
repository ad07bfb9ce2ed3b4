"""Add up the metrics of several engines."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from asyncgen import HistogramSnapshot, MetricsSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable


def summed(snapshots: Iterable[MetricsSnapshot]) -> MetricsSnapshot:
    """Return the sum of metrics.

    Args:
        snapshots: Metrics of engines of the same version; at least one.

    Raises:
        ValueError: There is none.
    """
    found = list(snapshots)
    if not found:
        raise ValueError("no engine has reported its metrics yet")
    shared = {name: getattr(found[0], name) for name in ("page_size", "cache_dtype")}
    values = {
        field.name: _sum([getattr(one, field.name) for one in found])
        for field in fields(MetricsSnapshot)
        if field.name not in shared
    }
    return MetricsSnapshot(**values, **shared)


def _sum(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, HistogramSnapshot):
        counts = tuple(map(sum, zip(*(one.counts for one in values), strict=True)))
        return HistogramSnapshot(first.bounds, counts, sum(one.sum for one in values))
    if isinstance(first, int | float):
        return sum(values)
    total: dict[Any, Any] = {}
    for one in values:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return type(first)(total)
