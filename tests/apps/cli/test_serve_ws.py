"""``asyncgen serve-ws`` is a process that says where it is, and leaves when asked."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner
from websockets.sync.client import connect

from asyncgen_apps.cli.app import app
from asyncgen_apps.cli.errors import UserError
from asyncgen_apps.cli.serve_ws import read_keys
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@contextmanager
def served(
    *options: str, program: str = "asyncgen_apps.cli"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server; give the process and its address."""
    command = [sys.executable, "-m", program, "serve-ws", "--port", "0", *options]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"^serving demo at (ws://\S+/v1/stream)", line):
                    yield process, found.group(1)
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.gate
def test_a_drain_cut_short_by_a_second_signal(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# who\nsecret\n", encoding="utf-8")
    request = {"type": "generate", "id": "a", "prompt": "Once", "params": {"min_new_tokens": 900}}
    with served("--api-key-file", str(keys), "--log", "json") as (process, url):
        with connect(url, additional_headers={"Authorization": "Bearer secret"}) as wire:
            assert json.loads(wire.recv())["authenticated"] is True
            wire.send(json.dumps(request))
            while json.loads(wire.recv())["type"] != "delta":
                pass
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            while (message := json.loads(wire.recv()))["type"] == "delta":
                pass
            assert message["type"] == "done"
            assert message["finish_reason"] in ("aborted", "length", "stop")
            with pytest.raises(Exception, match="1001"):
                wire.recv()
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert {"drain", "end", "close"} <= {event["event"] for event in events}
    assert "Once" not in told
    assert "secret" not in told


@pytest.mark.gate
def test_a_signal_under_load_ends_every_stream_with_a_word() -> None:
    """Four streams share the steps, the others queue; the time to finish is over at once."""
    names = [str(number) for number in range(12)]
    params = {"min_new_tokens": 900, "max_new_tokens": 900}
    options = ("--max-running", "4", "--drain-seconds", "0.2")
    with served(*options, program="tests.apps.cli.pacing") as (process, url):
        with connect(url) as wire:
            assert json.loads(wire.recv())["type"] == "hello"
            for name in names:
                request = {"type": "generate", "id": name, "prompt": "Once", "params": params}
                wire.send(json.dumps(request))
            accepted, texts = set(), dict.fromkeys(names, "")
            ends: dict[str, str] = {}
            is_told = False
            while len(ends) < len(names):
                message = json.loads(wire.recv(timeout=60))
                if message["type"] == "accepted":
                    accepted.add(message["id"])
                elif message["type"] == "delta":
                    texts[message["id"]] += message["text"]
                else:
                    assert message["type"] == "done", message
                    ends[message["id"]] = message["finish_reason"]
                if not is_told and len(accepted) == len(names) and any(texts.values()):
                    process.send_signal(signal.SIGTERM)
                    is_told = True
            assert "aborted" in ends.values() and set(ends.values()) <= {"aborted", "length"}
            with pytest.raises(Exception, match="1001"):
                wire.recv(timeout=60)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told


@for_each(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--allow-anonymous"),
        (["--allowed-host", "a:80"], "allowed_hosts has 'a:80'"),
        (["--trusted-proxy", "x"], "trusted_proxies has 'x'"),
        (["--api-key-file", "/does/not/exist"], "--api-key-file"),
        (["--replay", "0"], "--replay"),
        (["--open-seconds", "0"], "--open-seconds"),
        (["--prepare-seconds", "0"], "--prepare-seconds"),
        (["--max-connections", "1000000000"], "(ulimit -n), which leaves room for "),
    ],
)
def test_options_that_cannot_be(options: list[str], said: str) -> None:
    got = CliRunner(env={"ASYNCGEN_API_KEY": ""}).invoke(app, ["serve-ws", "--port", "0", *options])
    assert got.exit_code != 0
    assert said in got.output


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        got = CliRunner().invoke(app, ["serve-ws", "--port", port])
    assert got.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in got.output


def test_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\n one \n\ntwo\n", encoding="utf-8")
    assert read_keys(file, {}) == ("one", "two")
    assert read_keys(file, {"ASYNCGEN_API_KEY": "three  four"}) == ("three", "four", "one", "two")
    assert read_keys(None, {}) == ()
    file.write_text("# none\n", encoding="utf-8")
    with pytest.raises(UserError, match="no key"):
        read_keys(file, {})
