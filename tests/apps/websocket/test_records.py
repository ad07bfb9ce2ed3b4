"""Log lines stay on one line and carry their fields; what was counted can be scraped."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from asyncgen_apps.websocket.answers import Registry
from asyncgen_apps.websocket.figures import Figures, FiguresCollector
from asyncgen_apps.websocket.records import JsonLines, say
from asyncgen_apps.websocket.settings import StreamSettings

if TYPE_CHECKING:
    import pytest


def test_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.websocket"):
        say("end", request="r-1", tokens=7, seconds=0.12345, error=None)
        say("end", request="r\nERROR: forged=1")
    plain, forged = caplog.records
    assert plain.getMessage() == "end request=r-1 tokens=7 seconds=0.123"
    assert forged.getMessage() == r'end request="r\nERROR: forged=1"'


def test_json_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.websocket"):
        say("end", request="r\n1", tokens=7)
        logging.getLogger("asyncgen.websocket").info("said by %s", "others")
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert lines[0] | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "asyncgen.websocket",
        "event": "end",
        "request": "r\n1",
        "tokens": 7,
    }
    assert lines[1]["message"] == "said by others"


def test_a_traceback_is_kept() -> None:
    try:
        raise KeyError("x")
    except KeyError:
        import sys

        record = logging.LogRecord("a", logging.ERROR, "f", 1, "bad", (), sys.exc_info())
    assert "KeyError" in json.loads(JsonLines().format(record))["traceback"]


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
