"""Metrics of the WebSocket server for Prometheus.

=========================================  =======  ===============================================
name                                       kind     meaning
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
class Counters:
    """Numbers of a server for its metrics; plain integers, because every message changes them."""

    connections: int = 0
    connections_total: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    requests_total: int = 0
    resumed: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0

    def refuse(self, code: str) -> None:
        """Count a refused connection."""
        self.refused[code] = self.refused.get(code, 0) + 1


class CountersCollector(Collector):
    """Gives Prometheus the numbers when it asks."""

    def __init__(self, counters: Counters, registry: Registry) -> None:
        """Keep the sources of the numbers."""
        self._counters = counters
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        """Read the numbers once."""
        counters, registry = self._counters, self._registry
        for name, text, value in (
            ("connections", "Connections that are open.", counters.connections),
            ("requests", "Requests that run.", registry.num_running),
            ("kept_bytes", "Kept of requests that ended.", registry.kept_bytes),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        for name, text, value in (
            ("connections", "Connections so far.", counters.connections_total),
            ("dropped", "Connections given up: the client read nothing.", counters.dropped),
            ("requests", "Requests so far.", counters.requests_total),
            ("resumed", "Requests that were resumed.", counters.resumed),
            ("messages_sent", "Messages to clients.", counters.messages_sent),
            ("bytes_sent", "Bytes of messages to clients.", counters.bytes_sent),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        refused = CounterMetricFamily(PREFIX + "refused", "Refused.", labels=["code"])
        for code, count in counters.refused.items():
            refused.add_metric([code], count)
        yield refused

    def describe(self) -> Iterable[Metric]:
        """Name no metrics in advance."""
        return ()
