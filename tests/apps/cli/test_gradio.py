"""``asyncgen gradio``: serves the page until it is told to end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests.apps.cli.doubles import run_cli


def test_a_login_has_two_parts() -> None:
    result = run_cli("gradio", "--login", "alone")
    assert result.exit_code == 1
    assert "user:password" in result.output


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--allowed-host", "a:80", "allowed_hosts has 'a:80'"),
        ("--trusted-proxy", "proxy", "trusted_proxies has 'proxy'"),
    ],
)
def test_hosts_and_proxies_that_are_none(option: str, value: str, said: str) -> None:
    result = run_cli("gradio", option, value)
    assert result.exit_code == 1
    assert said in result.output


def test_missing_gradio_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    result = run_cli("gradio")
    assert result.exit_code == 1
    assert 'pip install "asyncgen[gradio]"' in result.output


@pytest.mark.gate
@pytest.mark.timeout(180)
def test_gradio_serves_until_it_is_terminated() -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncgen_apps.cli", "gradio"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = line.split(" is at ")[1].split()[0]
            with urllib.request.urlopen(url, timeout=60) as answer:
                page = answer.read().decode()
            evil = urllib.request.Request(url, headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="421"):
                urllib.request.urlopen(evil, timeout=60)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert line.startswith("demo is at http://127.0.0.1:")
    assert '"title":"demo"' in page.replace(" ", "")
    assert (process.returncode, errors) == (0, "")


def test_a_port_in_use_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_cli("gradio", "--model", "no/where", "--port", str(port))
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said
    assert "; see --host and --port" in said
