"""What was counted can be scraped."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from asyncgen_apps.websocket.answers import Registry
from asyncgen_apps.websocket.figures import Figures, FiguresCollector
from asyncgen_apps.websocket.settings import StreamSettings


def test_figures() -> None:
    figures = Figures(connections=2, connections_total=5, messages_sent=7, bytes_sent=99)
    figures.refuse("unauthorized")
    figures.refuse("unauthorized")
    registry = CollectorRegistry()
    registry.register(FiguresCollector(figures, Registry(StreamSettings())))
    text = generate_latest(registry).decode()
    for line in (
        "asyncgen_websocket_connections 2.0",
        "asyncgen_websocket_connections_total 5.0",
        "asyncgen_websocket_requests 0.0",
        "asyncgen_websocket_bytes_sent_total 99.0",
        'asyncgen_websocket_refused_total{code="unauthorized"} 2.0',
    ):
        assert f"\n{line}\n" in text
