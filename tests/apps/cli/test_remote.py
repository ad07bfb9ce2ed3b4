"""``asyncgen chat --url``: against a scripted server, without a model and without torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from asyncgen_apps.cli import remote
from tests.apps.cli.doubles import run_cli
from tests.apps.websocket.scripted import Peer, ScriptedServer


async def answer(peer: Peer) -> None:
    """Say which message was asked last, letter by letter."""
    await peer.hello()
    message = await peer.hear()
    await peer.accept(message["id"])
    await peer.answer(message["id"], message["messages"][-1]["content"] + "?")
    await peer.linger()


def authorization(server: ScriptedServer) -> str | None:
    return server.requests[-1].headers.get("Authorization")


def test_a_server_answers() -> None:
    with ScriptedServer(answer) as server:
        result = run_cli("chat", "--url", server.url, "Hi", "--system", "Be kind.", "--seed", "7")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Hi?\n"
    assert "tokens/s" in result.stderr
    [asked] = server.peers[0].heard
    assert asked["messages"][0] == {"role": "system", "content": "Be kind."}
    assert asked["params"] == {"seed": 7, "separate_reasoning": False}
    assert authorization(server) is None


def test_the_token_is_that_of_the_command_line_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASYNCGEN_API_KEY", "from-the-environment")
    with ScriptedServer(answer) as server:
        run_cli("chat", "--url", server.url, "Hi")
        assert authorization(server) == "Bearer from-the-environment"
        run_cli("chat", "--url", server.url, "Hi", "--token", "typed")
        assert authorization(server) == "Bearer typed"


def test_the_token_of_the_hub_goes_to_no_server() -> None:
    environment = {**os.environ, "HF_TOKEN": "hub"}
    environment.pop("ASYNCGEN_API_KEY", None)
    code = """
import sys
from asyncgen_apps.cli import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""
    with ScriptedServer(answer) as server:
        command = [sys.executable, "-c", code, "chat", "--url", server.url, "Hi"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "Hi?\nFalse\n"
        assert authorization(server) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cpu"], "--device together with --url"),
        (["--model", "demo"], "--model together with --url"),
        (["--threads", "2"], "--threads together with --url"),
    ],
)
def test_options_decided_by_the_server_are_refused(arguments: list[str], said: str) -> None:
    result = run_cli("chat", "--url", "ws://127.0.0.1:9", "Hi", *arguments)
    assert result.exit_code == 1
    assert said in result.stderr


def test_several_tokens_are_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCGEN_API_KEY", "sesame simsalabim")
    result = run_cli("chat", "--url", "ws://127.0.0.1:9", "Hi")
    assert result.exit_code == 1
    assert "holds 2 tokens" in result.stderr
    assert "sesame" not in result.stderr


def test_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "NEEDED", ("nowhere_to_be_found",))
    result = run_cli("chat", "--url", "ws://127.0.0.1:9", "Hi")
    assert result.exit_code == 1
    assert "asyncgen[websocket]" in result.stderr


def test_a_refusal_is_one_line() -> None:
    def refuse(_: Request) -> Response:
        return Response(401, "Unauthorized", Headers(), b"")

    with ScriptedServer(answer, refuse) as server:
        result = run_cli("chat", "--url", server.url, "Hi")
    assert result.exit_code == 1
    assert result.stderr == "error: the server refuses this client: HTTP 401\n"


def test_a_server_that_is_not_there_is_one_line() -> None:
    result = run_cli("chat", "--url", "ws://127.0.0.1:9", "Hi")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no connection to the server: ")
    assert result.stderr.count("\n") == 1
