"""Log lines stay on one line and carry their fields; what was counted can be scraped."""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from asyncgen_apps.websocket import metrics as published
from asyncgen_apps.websocket import structured_logs
from asyncgen_apps.websocket.metrics import Counters, CountersCollector
from asyncgen_apps.websocket.resumable_requests import Registry
from asyncgen_apps.websocket.settings import StreamSettings
from asyncgen_apps.websocket.structured_logs import (
    MOST_WARNINGS,
    SPARED_SECONDS,
    JsonLines,
    log_event,
)
from tests.apps.websocket.serving import endless, served

FIGURES = set(re.findall(r"``(asyncgen_websocket_\w+)``", published.__doc__ or ""))
"""What is documented."""


def test_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.websocket"):
        log_event("end", request="r-1", tokens=7, seconds=0.12345, error=None)
        log_event("end", request="r\nERROR: forged=1")
    plain, forged = caplog.records
    assert plain.getMessage() == "end request=r-1 tokens=7 seconds=0.123"
    assert forged.getMessage() == r'end request="r\nERROR: forged=1"'


def test_warnings_that_clients_cause_are_few(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("asyncgen_apps.websocket.structured_logs.time.monotonic", lambda: now[0])
    monkeypatch.setattr(structured_logs, "_warnings", defaultdict(structured_logs._Warnings))
    for _ in range(1000):
        log_event("refused", level=logging.WARNING, why="a")
    log_event("stalled", level=logging.WARNING)
    assert len(caplog.records) == MOST_WARNINGS + 1
    now[0] += SPARED_SECONDS
    for _ in range(2):
        log_event("refused", level=logging.WARNING, why="a")
    first, second = (record.getMessage() for record in caplog.records[-2:])
    assert first == f"refused why=a left_out={1000 - MOST_WARNINGS}"
    assert second == "refused why=a"


def test_json_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "asyncgen.websocket"):
        log_event("end", request="r\n1", tokens=7)
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
    figures = Counters(connections=2, connections_total=5, messages_sent=7, bytes_sent=99)
    figures.refuse("unauthorized")
    figures.refuse("unauthorized")
    registry = CollectorRegistry()
    registry.register(CountersCollector(figures, Registry(StreamSettings())))
    text = generate_latest(registry).decode()
    for line in (
        "asyncgen_websocket_connections 2.0",
        "asyncgen_websocket_connections_total 5.0",
        "asyncgen_websocket_requests 0.0",
        "asyncgen_websocket_bytes_sent_total 99.0",
        'asyncgen_websocket_refused_total{code="unauthorized"} 2.0',
    ):
        assert f"\n{line}\n" in text


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_figure_that_is_published_moves(anyio_backend: str) -> None:
    """One is refused, one is cut off and comes back, one reads nothing."""
    shots: list[dict[str, float]] = []
    async with served(endless(), tokens=("k",), send_seconds=0.1) as one:
        service = one.server.service
        registry = CollectorRegistry()
        registry.register(CountersCollector(service.counters, service.registry))

        def scrape() -> None:
            families = text_string_to_metric_families(generate_latest(registry).decode())
            shot: dict[str, float] = {}
            for sample in (each for family in families for each in family.samples):
                shot[sample.name] = shot.get(sample.name, 0) + sample.value
            shots.append(shot)

        scrape()
        async with one.client("wrong", greets=False) as stranger:
            assert (await stranger.get())["code"] == "unauthorized"
        async with one.client("k") as first:
            token = await first.begin(params={"max_new_tokens": 200})
            scrape()
            first.kill()
        await one.wait_idle()
        scrape()
        async with one.client("k") as second:
            await second.send("resume", id="a", resume_token=token, after=0)
            assert (await second.get())["type"] == "accepted"
            assert (await second.rest())[1]["type"] == "done"
            [connection] = one.server._connections.connections
            connection.pause_writing()
            await second.wait_closed()
        scrape()
    assert {name for shot in shots for name in shot} == FIGURES
    still = [name for name in FIGURES if len({shot.get(name, 0) for shot in shots}) < 2]
    assert not still, f"never moved: {still}"
