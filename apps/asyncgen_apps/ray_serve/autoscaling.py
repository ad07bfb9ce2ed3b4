"""Compute the number of replicas from the metrics of the engines.

Ray Serve asks again and again, keeps the bounds, and waits before it follows. Here is only what is
needed now: as many as keep each at its target of streams, those that wait included, and of pages in
use, whichever is more. Knows no Ray: it is pickled, and runs in Serve's controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

STREAMS = "streams"
"""Requests of an engine that run or wait."""

PAGES = "pages"
"""Share of its pages that they hold."""


class Seen(Protocol):
    """Part of Serve's context that the policy reads."""

    @property
    def running_replicas(self) -> Collection[Any]:
        """Names of the replicas that are there."""

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None:
        """Metrics by name and replica: means of the last seconds."""

    @property
    def total_num_requests(self) -> float:
        """Requests that run or wait, as Serve counts them."""

    @property
    def total_queued_requests(self) -> float | None:
        """Those of them that wait where they came in."""


def told(figures: Any) -> dict[str, float]:
    """Return the values of a ``MetricsSnapshot`` that decide the number of replicas."""
    streams = figures.requests_running + figures.requests_waiting
    return {STREAMS: float(streams), PAGES: float(figures.cache_usage)}


class EngineScaling:
    """A policy of Ray Serve."""

    def __init__(self, target_requests: float, target_pages: float) -> None:
        """Take the targets.

        Args:
            target_requests: Streams of a replica that are neither too many nor too few.
            target_pages: Share of its pages, likewise.
        """
        self._requests = target_requests
        self._pages = target_pages

    def __call__(self, seen: Seen) -> tuple[float, dict[str, Any]]:
        """Say how many replicas the work needs; not a whole number, and within no bounds.

        Args:
            seen: What Serve knows. A replica that has told nothing yet has nothing to do.
        """
        alive = set(seen.running_replicas)
        metrics = seen.aggregated_metrics or {}
        streams = _sum(metrics.get(STREAMS, {}), alive)
        queued = seen.total_queued_requests or 0.0
        if not metrics.get(STREAMS):
            streams, queued = seen.total_num_requests, 0.0  # as Serve counts them
        by_streams = (streams + queued) / self._requests
        by_pages = _sum(metrics.get(PAGES, {}), alive) / self._pages
        return max(by_streams, by_pages), {}


def _sum(values: Mapping[Any, float], alive: Collection[Any]) -> float:
    return sum(value for replica, value in values.items() if replica in alive)
