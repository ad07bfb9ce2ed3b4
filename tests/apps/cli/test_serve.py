"""``asyncgen serve`` is a process that says where it is, and leaves when asked."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from asyncgen_apps.cli.app import app
from asyncgen_apps.cli.source import Source, open_llm
from asyncgen_apps.serving.origins import LOCAL_HOSTS
from tests.apps.cli.serving import ROOT, served
from tests.cases import for_each

module = import_module("asyncgen_apps.cli.serve")


@pytest.mark.gate
def test_it_serves_and_leaves() -> None:
    with served("--no-chat", "--verbose", "--name", "small") as (process, url, said):
        assert re.search(r"^import \S+ s, load \S+ s, first token \S+ s: ", "".join(said), re.M)
        body = json.dumps({"model": "small", "prompt": "Once", "max_tokens": 4}).encode()
        kind = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/completions", body, kind)
        with urllib.request.urlopen(asked, timeout=60) as got:
            assert json.load(got)["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.clients
def test_the_client_of_the_page() -> None:
    page = (ROOT / "apps/asyncgen_apps/openai_http/README.md").read_text(encoding="utf-8")
    example = re.search(r"^```py\n(from openai.*?)^```", page, re.M | re.S)
    assert example is not None
    with served("--no-chat", "--model", "demo") as (process, url, _):
        code = example.group(1).replace("http://127.0.0.1:8000", url)
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "fox" in ran.stdout


@pytest.mark.gate
@pytest.mark.skipif(sys.platform == "win32", reason="sockets are no files there")
def test_more_silence_than_files() -> None:
    """Connections that say nothing, on both ports, lock nobody out; afterwards all is as before."""
    with (
        served("--no-chat", "--ws-port", "0", files=320) as (process, url, said),
        ExitStack() as all_,
    ):
        streams = re.search(r"streams at (ws://\S+)", "".join(said))
        assert streams is not None
        http = ("127.0.0.1", int(url.rpartition(":")[2]))
        websockets = ("127.0.0.1", urlsplit(streams[1]).port)
        silent = [
            all_.enter_context(socket.create_connection(address, 60))
            for _ in range(200)
            for address in (http, websockets)
        ]
        end = time.monotonic() + 60
        while (
            ask(f"{url}/health") != 200
        ):  # while they are accepted, one of a turn may have no file
            assert time.monotonic() < end
        assert ask(f"{url}/health") == 200
        assert ask(f"{url}/v1/models") == 503
        assert ask(f"http://127.0.0.1:{websockets[1]}/healthz") == 200
        with connect(streams[1], compression=None) as wire:
            assert json.loads(wire.recv(60))["type"] == "hello"
        for one in silent:
            one.close()
        end = time.monotonic() + 60
        while ask(f"{url}/v1/models") != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def ask(url: str) -> int:
    """The status of a reply; 0 if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=60) as got:
            return int(got.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        got = CliRunner().invoke(app, ["serve", "--port", port])
    assert got.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in got.output


@for_each(
    ("options", "said"),
    [
        (["--api-key", " "], "a key is ASCII text"),
        (["--name", ""], "give at least one name"),
        (["--max-requests", "0"], "max-requests"),
        (["--host", "0.0.0.0"], "give --api-key or ASYNCGEN_API_KEY, or say --allow-anonymous"),
        (["--host", "::"], "--allow-anonymous"),
        (["--api-key", "a", "--allow-anonymous"], "leave one of them out"),
        (["--allowed-host", "a:80"], "allowed_hosts has 'a:80'"),
        (["--trusted-proxy", "proxy"], "trusted_proxies has 'proxy'"),
        (["--max-connections", "0"], "max-connections"),
        (["--max-connections", "1000000000"], "(ulimit -n), which leaves room for "),
        (["--head-seconds", "0"], "head-seconds"),
        (["--prepare-seconds", "0"], "prepare-seconds"),
    ],
)
def test_options_that_cannot_be(options: list[str], said: str) -> None:
    got = CliRunner(env={"ASYNCGEN_API_KEY": ""}).invoke(app, ["serve", "--port", "0", *options])
    assert got.exit_code != 0
    assert said in got.output


@pytest.mark.parametrize("command", ["serve", "serve_ws"])
def test_options_of_the_engine(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[Source] = []
    served = import_module(f"asyncgen_apps.cli.{command}")
    monkeypatch.setattr(served, "run_loop", lambda _, source, *__: sources.append(source))
    monkeypatch.setattr(served, "bind", lambda *_: None)
    options = ["--max-running", "3", "--max-queue", "5", "--prepare-seconds", "2.5"]
    for given in (options, []):
        got = CliRunner().invoke(app, [command.replace("_", "-"), *given])
        assert got.exit_code == 0, got.output
    asked, default = sources
    assert (asked.max_running, asked.max_queue_size, asked.prepare_seconds) == (3, 5, 2.5)
    assert (default.max_running, default.max_queue_size, default.prepare_seconds) == (None,) * 3
    llm: Any = open_llm(asked)
    assert llm._preparing._seconds == 2.5


def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Plan of each server, which is not run."""
    plans: list[Any] = []

    def run(
        serve: object,
        source: object,
        plan: object,
        listeners: list[socket.socket],
        startup: object,
    ) -> None:
        plans.append(plan)
        for listener in listeners:
            listener.close()

    monkeypatch.setattr(module, "run_loop", run)
    return plans


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ([], LOCAL_HOSTS),
        (["--host", "127.0.0.1", "--allowed-host", "a.example"], (*LOCAL_HOSTS, "a.example")),
        (["--allowed-host", "*"], (*LOCAL_HOSTS, "*")),
        (["--api-key", "k"], None),
        (["--host", "0.0.0.0", "--api-key", "k"], None),
        (["--host", "0.0.0.0", "--allow-anonymous"], None),
        (["--host", "0.0.0.0", "--no-auth"], None),
    ],
)
def test_allowed_hosts_follow_options(
    options: list[str], hosts: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = planned(monkeypatch)
    environ = {"ASYNCGEN_API_KEY": ""}
    got = CliRunner(env=environ).invoke(app, ["serve", "--port", "0", "--no-chat", *options])
    assert got.exit_code == 0, got.output
    assert plans[0].settings.allowed_hosts == plans[0].streams.allowed_hosts == hosts


def test_keys_do_not_guard_a_chat_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncgen_apps.openai_http import chat_mount

    plans = planned(monkeypatch)
    monkeypatch.setattr(chat_mount, "has_chat", lambda: True)
    CliRunner().invoke(app, ["serve", "--port", "0", "--api-key", "k", "--chat"])
    assert plans[0].settings.allowed_hosts == LOCAL_HOSTS


def test_a_chat_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncgen_apps.openai_http import chat_mount

    monkeypatch.setattr(chat_mount, "has_chat", lambda: False)
    got = CliRunner().invoke(app, ["serve", "--port", "0", "--chat"])
    assert got.exit_code == 1
    assert "gradio is not installed" in got.output
