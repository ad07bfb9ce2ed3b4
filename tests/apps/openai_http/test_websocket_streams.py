"""WebSockets share the server's keys, limit and drain, on its port and on one of their own."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from asyncgen import AsyncLLM, Tokenizer
from asyncgen_apps.openai_http import ServerSettings
from asyncgen_apps.openai_http.websocket_streams import stream_settings
from tests.apps.openai_http.running import PATIENCE, running, wait_for
from tests.apps.openai_http.test_answer import scripted
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.sync.client import ClientConnection

    from tests.apps.openai_http.running import Running


class Wire:
    """A connection with JSON on it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        self.socket.send(json.dumps({"type": kind, **fields}))

    def hear(self) -> dict[str, Any]:
        """Receive one."""
        found: dict[str, Any] = json.loads(self.socket.recv(PATIENCE))
        return found

    def begin(self, **params: Any) -> None:
        """Start a request, and read its first piece."""
        self.say("generate", id="a", prompt="Once upon a time", params=params)
        assert self.hear()["type"] == "accepted"
        assert self.hear()["type"] == "delta"

    def rest(self) -> tuple[str, dict[str, Any]]:
        """Read to the last message."""
        text = ""
        while (message := self.hear())["type"] in ("accepted", "delta"):
            text += message.get("text", "")
        return text, message


@contextmanager
def wired(
    served: Running, port: int | None = None, path: str = "/v1/stream", **options: Any
) -> Iterator[Wire]:
    """Connect."""
    url = f"ws://127.0.0.1:{port or served.port}{path}"
    with connect(url, subprotocols=["asyncgen.v1"], open_timeout=PATIENCE, **options) as socket:  # type: ignore[list-item]
        yield Wire(socket)


def demo_model() -> AsyncLLM:
    return AsyncLLM("demo", num_threads=1)


def endless() -> AsyncLLM:
    """A model that babbles until it is stopped, however late that is."""
    return scripted(context_length=1_000_000)()


def test_the_same_text_on_every_way(either: Running) -> None:
    asked = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
    wanted = either.post("/completions", asked).json()["choices"][0]["text"]
    for port in (either.port, either.ws_port):
        with wired(either, port) as wire:
            assert wire.hear()["model"] == "demo"
            wire.say(
                "generate",
                id="a",
                prompt="Once upon a time",
                params={"max_new_tokens": 30, "do_sample": False},
            )
            text, done = wire.rest()
            assert (text, done["finish_reason"]) == (wanted, "length")
    either.wait_idle()


def test_one_limit_for_all() -> None:
    with running(endless, max_requests=1, streams={"max_connections": 2}) as served:
        with wired(served) as wire:
            wire.hear()
            wire.begin()
            assert served.gate.count == 1
            refused = served.post("/completions", {"model": "demo", "prompt": "a"})
            assert refused.status == 429
            with wired(served, served.ws_port) as other:
                other.hear()
                other.say("generate", id="b", prompt="a")
                error = other.rest()[1]
                assert error["code"] == "overloaded"
                assert error["retry_after"] > 0
        served.wait_idle()  # the client that left took its request along


@pytest.mark.parametrize("way", ["port", "ws_port"])
def test_keys(way: str) -> None:
    with running(demo_model, api_keys=("right",)) as served:
        port = getattr(served, way)
        with wired(served, port, additional_headers={"authorization": "Bearer right"}) as wire:
            assert wire.hear()["type"] == "hello"
        with wired(served, port) as wire:
            wire.say("auth", token="right")
            assert wire.hear()["type"] == "hello"
            wire.begin(max_new_tokens=3)
            assert wire.rest()[1]["type"] == "done"
        for first in ({"type": "auth", "token": "wrong"}, {"type": "generate", "id": "a"}):
            with wired(served, port) as wire:
                wire.socket.send(json.dumps({**first, "prompt": "a"} if "id" in first else first))
                assert wire.hear()["type"] == "error"
                with pytest.raises(ConnectionClosed) as closed:
                    wire.hear()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1008
        with pytest.raises(InvalidStatus), wired(served, path="/v1/other"):
            pass
        assert served.unfinished() == 0


def test_a_drain_lets_a_stream_finish() -> None:
    with running(demo_model, drain_seconds=60) as served:
        with wired(served) as wire, wired(served, served.ws_port) as other:
            for each in (wire, other):
                each.hear()
                each.begin(max_new_tokens=150, eos_token_id=[])
            served.call(served.server.leave)
            for each in (wire, other):
                assert each.rest()[1]["finish_reason"] == "length"
                with pytest.raises(ConnectionClosed) as closed:
                    each.hear()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1001


def test_shortened_drain_is_reported_to_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last words take as long as a slow machine needs.
    monkeypatch.setattr("asyncgen_apps.websocket.service.FLUSH_SECONDS", PATIENCE)
    with running(endless, drain_seconds=60) as served:
        with wired(served) as wire:
            wire.hear()
            wire.begin()
            served.call(served.server.leave)
            wait_for(lambda: served.gate.draining)
            served.call(served.server.leave)
            assert wire.rest()[1]["finish_reason"] == "aborted"
        wait_for(lambda: served.unfinished() == 0)


def test_settings_are_the_servers() -> None:
    settings = ServerSettings(("a", "b"), ("key",), ("https://x.org",), max_body_bytes=5000)
    streams = stream_settings(settings, 7.0)
    assert (streams.model_name, streams.tokens) == ("a", ("key",))
    assert (streams.origins, streams.max_message_bytes) == (("https://x.org",), 5000)
    assert streams.drain_seconds == 7.0


@pytest.mark.gate
def test_hanging_or_panicking_texts_leave_http_and_websocket_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fifth long text is refused by both, both say so, and both serve all else."""
    encode, release = Tokenizer.encode_ids, threading.Event()

    def encode_ids(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        if text.startswith("hang"):
            release.wait(PATIENCE)
        if text.startswith("panic"):
            raise GeneratorExit  # to a task of a loop, this is the end
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_ids", encode_ids)
    model, tokenizer = TableModel(context_length=100_000), byte_tokenizer()
    long = "x" * 5000

    def ask(prompt: str) -> tuple[int, str]:
        reply = served.post("/completions", {"model": "demo", "prompt": prompt, "max_tokens": 2})
        return reply.status, reply.body.decode()

    def health(port: int, path: str) -> tuple[int, str]:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as reply:
            return reply.status, reply.read().decode()

    def make() -> AsyncLLM:
        return AsyncLLM(model, tokenizer=tokenizer, prepare_seconds=0.5)

    with running(make) as served, wired(served) as wire:
        try:
            assert wire.hear()["type"] == "hello"
            wire.say("generate", id="p", prompt="panic")
            assert wire.rest()[1]["code"] == "internal"
            assert ask("panic")[0] == 500
            wire.say("generate", id="h", prompt="hang")
            assert wire.rest()[1]["code"] == "invalid_request"
            assert health(served.port, "/health") == (200, "ok\n")
            with ThreadPoolExecutor(3) as pool:
                for status, told in pool.map(ask, ["hang"] * 3):
                    assert status == 400 and "prepare_seconds" in told
            for port, path in ((served.port, "/health"), (served.ws_port, "/healthz")):
                assert health(port, path) == (200, "degraded\n")
            assert health(served.port, "/ready") == (200, "ok\n")
            status, told = ask(long)
            assert status == 503 and "degraded" in told
            wire.say("generate", id="l", prompt=long)
            refused = wire.rest()[1]
            assert refused["code"] == "overloaded" and refused["retry_after"] > 0
            assert ask("short")[0] == 200
            wire.say("generate", id="s", prompt="short", params={"max_new_tokens": 2})
            assert wire.rest()[1]["type"] == "done"
        finally:
            release.set()
        wait_for(lambda: health(served.port, "/health") == (200, "ok\n"))
        assert ask(long)[0] == 200
