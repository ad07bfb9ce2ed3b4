"""Metrics of the WebSocket server for Prometheus.

=========================================  =======  ===============================================
name                                       kind     what it is
=========================================  =======  ===============================================
``asyncgen_websocket_connections``         gauge    connections that are open
``asyncgen_websocket_requests``            gauge    requests that run
``asyncgen_websocket_kept_bytes``          gauge    kept of requests that ended, to be sent again
``asyncgen_websocket_connections_total``   counter  connections, also those that were refused
``asyncgen_websocket_refused_total``       counter  connections that were refused, by ``code``
``asyncgen_websocket_dropped_total``       counter  connections given up: the client read nothing
``asyncgen_websocket_requests_total``      counter  requests that were begun
``asyncgen_websocket_resumed_total``       counter  requests that were resumed
``asyncgen_websocket_messages_sent_total`` counter  messages to clients
``asyncgen_websocket_bytes_sent_total``    counter  bytes of them
=========================================  =======  ===============================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from asyncgen_apps.websocket.resumable_requests import Registry


PREFIX = "asyncgen_websocket_"


@dataclass(slots=True)
class Figures:
    """The counts; plain numbers, as they change with every message."""

    connections: int = 0
    connections_total: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    requests_total: int = 0
    resumed: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0

    def refuse(self, code: str) -> None:
        """Count a refusal."""
        self.refused[code] = self.refused.get(code, 0) + 1


class FiguresCollector(Collector):
    """Gives Prometheus the counts when it asks."""

    def __init__(self, figures: Figures, registry: Registry) -> None:
        """Describe what to read."""
        self._figures = figures
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        """Read the counts once."""
        figures, registry = self._figures, self._registry
        for name, told, value in (
            ("connections", "Connections that are open.", figures.connections),
            ("requests", "Requests that run.", registry.num_running),
            ("kept_bytes", "Kept of requests that ended.", registry.kept_bytes),
        ):
            yield GaugeMetricFamily(PREFIX + name, told, value=value)
        for name, told, value in (
            ("connections", "Connections so far.", figures.connections_total),
            ("dropped", "Connections given up: the client read nothing.", figures.dropped),
            ("requests", "Requests so far.", figures.requests_total),
            ("resumed", "Requests that were resumed.", figures.resumed),
            ("messages_sent", "Messages to clients.", figures.messages_sent),
            ("bytes_sent", "Bytes of messages to clients.", figures.bytes_sent),
        ):
            yield CounterMetricFamily(f"{PREFIX}{name}", told, value=value)
        refused = CounterMetricFamily(PREFIX + "refused", "Refused.", labels=["code"])
        for code, count in figures.refused.items():
            refused.add_metric([code], count)
        yield refused

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand."""
        return ()
