"""Compute the number of replicas from the metrics of the engines.

Ray Serve calls the policy regularly, applies the bounds and the delays. The policy returns the
number that is needed now: so many that each replica is at its target of running and waiting
streams, or of pages in use, whichever needs more. Imports no Ray: it is pickled, and runs in
Serve's controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

STREAMS = "streams"
"""Name of the metric: requests of an engine that run or wait."""

PAGES = "pages"
"""Name of the metric: share of its pages that these hold."""


class ScalingContext(Protocol):
    """Part of Serve's autoscaling context that the policy reads."""

    @property
    def running_replicas(self) -> Collection[Any]:
        """Names of the running replicas."""

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None:
        """Metrics by name and replica, as means of the last seconds."""

    @property
    def total_num_requests(self) -> float:
        """Number of requests that run or wait, as Serve counts them."""

    @property
    def total_queued_requests(self) -> float | None:
        """Number of these that wait at an ingress."""


def scaling_metrics(metrics: Any) -> dict[str, float]:
    """Return the values of a ``MetricsSnapshot`` that decide the number of replicas."""
    streams = metrics.requests_running + metrics.requests_waiting
    return {STREAMS: float(streams), PAGES: float(metrics.cache_usage)}


class EngineScaling:
    """Autoscaling policy for Ray Serve."""

    def __init__(self, target_requests: float, target_pages: float) -> None:
        """Set the targets.

        Args:
            target_requests: Number of streams that a replica should have.
            target_pages: Share of its pages that a replica should use.
        """
        self._requests = target_requests
        self._pages = target_pages

    def __call__(self, context: ScalingContext) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas that the load needs, a fraction without bounds.

        Args:
            context: State of Serve. A replica without metrics counts as idle.
        """
        alive = set(context.running_replicas)
        metrics = context.aggregated_metrics or {}
        streams = _sum(metrics.get(STREAMS, {}), alive)
        queued = context.total_queued_requests or 0.0
        if not metrics.get(STREAMS):
            streams, queued = context.total_num_requests, 0.0  # before the first metrics
        by_streams = (streams + queued) / self._requests
        by_pages = _sum(metrics.get(PAGES, {}), alive) / self._pages
        return max(by_streams, by_pages), {}


def _sum(values: Mapping[Any, float], alive: Collection[Any]) -> float:
    return sum(value for replica, value in values.items() if replica in alive)
