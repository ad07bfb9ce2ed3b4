"""``asyncgen serve`` is a process that says where it is, and leaves when asked."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

from asyncgen_apps.cli.app import app
from tests.apps.cli.serving import ROOT, served


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


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        got = CliRunner().invoke(app, ["serve", "--port", port])
    assert got.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in got.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--api-key", " "], "a key is ASCII text"),
        (["--name", ""], "give at least one name"),
        (["--max-requests", "0"], "max-requests"),
    ],
)
def test_options_that_cannot_be(options: list[str], said: str) -> None:
    got = CliRunner().invoke(app, ["serve", "--port", "0", *options])
    assert got.exit_code != 0
    assert said in got.output


def test_a_chat_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncgen_apps.openai_http import mounts

    monkeypatch.setattr(mounts, "has_chat", lambda: False)
    got = CliRunner().invoke(app, ["serve", "--port", "0", "--chat"])
    assert got.exit_code == 1
    assert "gradio is not installed" in got.output
