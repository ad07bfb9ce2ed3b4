"""Two servers on the demo model and a router in front of them, each a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.apps.cli.test_serve_ws import ROOT
from tests.apps.ray_serve.cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
KEY = "sesame-sesame-open"
NOTICE = 4.0
LONG = {"max_tokens": 900, "min_tokens": 890, "temperature": 1.0, "seed": 3}
"""So many tokens that there is time to do something meanwhile."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
    """Return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, what
        time.sleep(0.02)
    return time.monotonic() - began


def ask(
    port: int, path: str, body: object = None, *, host: str | None = None, key: str | None = KEY
) -> tuple[int, bytes]:
    """One request; status and body of the reply."""
    wire = begin(port, path, body, host=host, key=key)
    try:
        got = wire.getresponse()
        return got.status, got.read()
    finally:
        wire.close()


def begin(
    port: int, path: str, body: object = None, *, host: str | None = None, key: str | None = KEY
) -> http.client.HTTPConnection:
    """Send a request, and leave the reply on the wire."""
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    if host is not None:
        headers["Host"] = host
    if body is None:
        wire.request("GET", path, headers=headers)
    else:
        raw = json.dumps(body).encode()
        wire.request("POST", path, raw, {**headers, "Content-Type": "application/json"})
    return wire


def text_of(body: bytes) -> str:
    """The whole text of a stream of a completion, or of a chat; it must have its end.

    Raises:
        AssertionError: It was cut, or an error came.
    """
    datas = [part[6:] for part in body.decode().split("\n\n") if part.startswith("data: ")]
    assert datas and datas[-1] == "[DONE]", body[-300:]
    found, ended = "", False
    for data in datas[:-1]:
        event = json.loads(data)
        assert "error" not in event, event
        for choice in event["choices"]:
            found += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            ended = ended or choice["finish_reason"] is not None
    assert ended, body[-300:]
    return found


@dataclass
class Served:
    """A server.

    Attributes:
        port: Where.
        process: Its process.
    """

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def figure(self, name: str) -> float:
        """The sum of a figure over its labels."""
        status, body = ask(self.port, "/metrics")
        assert status == 200
        lines = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", body.decode(), re.MULTILINE)
        assert lines, f"no {name}"
        return sum(map(float, lines))

    @property
    def running(self) -> int:
        return round(self.figure("vllm:num_requests_running"))

    @property
    def served(self) -> int:
        """Requests that came to their end."""
        return round(self.figure("vllm:e2e_request_latency_seconds_count"))


@dataclass
class Fleet:
    """Servers, and the router in front.

    Attributes:
        port: Of the router.
        servers: Behind it.
        process: The router's.
    """

    port: int
    servers: list[Served]
    process: subprocess.Popen[bytes]
    stack: ExitStack = field(repr=False)

    def ask(self, path: str, body: object = None) -> tuple[int, bytes]:
        """Through the router."""
        return ask(self.port, path, body)

    @property
    def running(self) -> list[int]:
        return [one.running for one in self.servers]


def program(name: str) -> Path:
    """Return the path of a router; skip the test if it is not installed."""
    place = Path(os.environ.get("ASYNCGEN_ROUTERS", "")) / name / "bin" / name
    if not place.is_file():
        pytest.skip(f"no {name}: .ci/routers installs it")
    return place


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    """A server that is ready."""
    port = free_port()
    command = [sys.executable, "-m", "asyncgen_apps.cli", "serve", "--threads", "1", "--no-chat"]
    command += ["--port", str(port), "--notice", str(NOTICE), *options]
    environ = {**os.environ, "ASYNCGEN_API_KEY": KEY}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers(port, "/ready"), "the server")
            yield Served(port, process)
        finally:
            process.kill()


def answers(port: int, path: str) -> bool:
    """Tell whether an address answers 200."""
    try:
        return ask(port, path)[0] == 200
    except OSError:
        return False


@contextmanager
def fleet(name: str, policy: str) -> Iterator[Fleet]:
    """Two servers behind a router; all of them are gone behind the block.

    Args:
        name: The router.
        policy: How it chooses.
    """
    place = program(name)
    with ExitStack() as stack:
        servers = [stack.enter_context(serving()) for _ in range(2)]
        port = free_port()
        command = [str(place), *(["launch"] if name == "sglang-router" else [])]
        command += ["--port", str(port), "--prometheus-port", str(free_port())]
        command += ["--policy", policy, "--worker-urls", *(one.url for one in servers)]
        command += ["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1"]
        command += ["--health-failure-threshold", "1", "--health-success-threshold", "1"]
        command += ["--api-key", KEY]
        quiet = subprocess.DEVNULL
        process = stack.enter_context(subprocess.Popen(command, stdout=quiet, stderr=quiet))
        stack.callback(process.kill)
        wait_until(lambda: _knows(port, len(servers)), "the router")
        yield Fleet(port, servers, process, stack)


def _knows(port: int, servers: int) -> bool:
    """Tell whether a router has found its servers."""
    body = {"model": "demo", "prompt": "Once", "max_tokens": 1}
    try:
        return all(ask(port, "/v1/completions", body)[0] == 200 for _ in range(servers))
    except (OSError, http.client.HTTPException):
        return False


def end_politely(served: Served) -> None:
    """End a process as Kubernetes ends a pod."""
    served.process.send_signal(signal.SIGTERM)
