"""Collect the newest metrics of all replicas, because a Serve handle reaches only one of them."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen import MetricsSnapshot

FRESH_SECONDS = 10.0
"""Age of a report at which its replica counts as lost."""


class MetricsBoard:
    """Newest metrics of each replica."""

    def __init__(self) -> None:
        """Begin without reports."""
        self._reports: dict[str, tuple[float, MetricsSnapshot]] = {}

    async def report(self, replica: str, metrics: MetricsSnapshot) -> None:
        """Store the newest metrics of a replica."""
        self._reports[replica] = monotonic(), metrics

    async def read(self) -> dict[str, MetricsSnapshot]:
        """Return the metrics of all replicas that reported lately."""
        oldest = monotonic() - FRESH_SECONDS
        self._reports = {
            name: report for name, report in self._reports.items() if report[0] > oldest
        }
        return {name: metrics for name, (_, metrics) in self._reports.items()}
