"""Servers are started with what they are to serve, waited for and ended."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from asyncgen_apps.bench.cores import cores
from asyncgen_apps.bench.sides.servers import SERVERS, ServerOptions, ServerProcess
from asyncgen_apps.bench.workers import BenchError

WANTED = ServerOptions(Path("folder"), "float32", 1, 8, 64)
PROGRAM = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.mark.parametrize("name", SERVERS)
def test_commands(name: str) -> None:
    command = SERVERS[name](WANTED, 1234)
    assert "folder" in command
    assert command[command.index("--port") + 1] == "1234"
    assert command[command.index("--dtype") + 1] == "float32"
    assert ("--continuous-batching" in command) == (name == "continuous")


def test_it_is_started_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(wanted: ServerOptions, port: int) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(port)]

    monkeypatch.setitem(SERVERS, "fake", command)
    cpus = frozenset(list(psutil.Process().cpu_affinity() or [])[:1])
    with ServerProcess("fake", WANTED, cpus) as server:
        assert os.sched_getaffinity(server.pid) == cpus
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/x", timeout=60) as got:
            assert got.status == 200
        process = psutil.Process(server.pid)
    assert not process.is_running()


def test_one_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no model')"]
    monkeypatch.setitem(SERVERS, "fake", lambda wanted, port: command)
    with pytest.raises(BenchError, match="fake did not start: no model"):
        with ServerProcess("fake", WANTED, frozenset()):
            pass


def test_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert cores() == (frozenset({0, 1}), frozenset({4}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2})
    assert cores() == (frozenset(), frozenset())
