"""The server on real sockets, over a real decode thread."""

from __future__ import annotations

import json
import socket
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, NegotiationError
from websockets.frames import Frame, Opcode

from asyncgen import AsyncLLM
from asyncgen_apps.serving.limits import LARGE
from asyncgen_apps.websocket.frames import read_large
from asyncgen_apps.websocket.server import serve_websocket
from asyncgen_apps.websocket.settings import StreamSettings
from tests.apps.websocket.serving import (
    PATIENCE,
    STORY,
    endless,
    in_thread,
    served,
    teller,
    wait_for,
)
from tests.cases import for_each
from tests.doubles.engine import no_thread_left
from tests.doubles.models import Gate

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The library's server is of asyncio."""
    return "asyncio"


# What it does.


async def test_many_requests_on_a_connection() -> None:
    async with served() as one, one.client() as client:
        for number in range(8):
            await client.send("generate", id=f"r{number}", token_ids=[1])
        texts = {f"r{number}": "" for number in range(8)}
        ends = 0
        while ends < 8:
            message = await client.get()
            if message["type"] == "delta":
                texts[message["id"]] += message["text"]
            ends += message["type"] == "done"
        assert set(texts.values()) == {STORY}


async def test_tokens_and_samples() -> None:
    async with served(endless()) as one, one.client() as client:
        params: dict[str, Any] = {"n": 2, "seed": 3, "top_logprobs": 1, "do_sample": True}
        params["max_new_tokens"] = 5
        await client.begin(prompt="x", params=params, events="tokens", token_ids=None)
        deltas: list[dict[str, Any]] = []
        while (message := await client.get())["type"] == "delta":
            deltas.append(message)
        for index in (0, 1):
            mine = [delta for delta in deltas if delta["index"] == index]
            ids = [i for delta in mine for i in delta["token_ids"]]
            logprobs = [entry for delta in mine for entry in delta["logprobs"]]
            assert [entry["token_id"] for entry in logprobs] == ids
            assert len(ids) == 5
        assert [choice["finish_reason"] for choice in message["choices"]] == ["length"] * 2
        assert message["usage"]["completion_tokens"] == 10


async def test_the_bundled_model_and_chat_messages() -> None:
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    async with AsyncLLM("demo", num_threads=1) as llm, serve_websocket(llm) as server:
        expected = (await llm.generate(messages, max_new_tokens=12, do_sample=False)).text
        async with connect(server.url) as wire:  # a client that names no subprotocol
            await wire.recv()
            params = {"max_new_tokens": 12, "do_sample": False}
            request = {"type": "generate", "id": "a", "messages": messages, "params": params}
            await wire.send(json.dumps(request))
            text = ""
            async for frame in wire:
                message = json.loads(frame)
                text += message.get("text", "")
                if message["type"] == "done":
                    break
        assert text == expected


async def test_a_full_queue() -> None:
    gate = Gate()
    options = {"max_running": 1, "max_queue_size": 1}
    async with served(teller(gate), llm=options) as one, one.client() as client:
        await client.begin("a")
        await in_thread(lambda: gate.wait_arrived(1))
        waits = await client.ask("generate", id="b", token_ids=[1])
        assert waits["type"] == "accepted"
        refused = await client.ask("generate", id="c", token_ids=[1])
        assert (refused["id"], refused["code"]) == ("c", "overloaded")
        assert refused["retry_after"] > 0
        gate.open()
        text, done = await client.rest("b")
        assert (text, done["finish_reason"]) == (STORY, "stop")


async def test_prompts_beyond_the_limit() -> None:
    long = {"messages": [{"role": "user", "content": "x" * 9}]}
    async with served(max_prompt_tokens=8) as one, one.client() as client:
        for source in ({"prompt": "x" * 9}, {"token_ids": [1] * 9}, long):
            refused = await client.ask("generate", id="a", **source)
            assert (refused["code"], refused["id"]) == ("context_length", "a")
            assert "this server takes 8" in refused["message"]
        await client.begin(prompt="x" * 8, token_ids=None)


# How it is let in.


async def test_tokens() -> None:
    async with served(tokens=("right", "also")) as one:
        async with one.client("also") as client:
            assert client.hello["authenticated"] is True
        async with one.client(greets=False) as client:
            hello = await client.ask("auth", token="right")
            assert hello["type"] == "hello"
            await client.begin()
        for header, first in (("wrong", None), (None, "wrong"), (None, None)):
            async with one.client(header, greets=False) as client:
                if header is None:
                    kind = ("auth", {"token": first}) if first else ("ping", {"nonce": 1})
                    await client.send(kind[0], **kind[1])
                error = await client.get()
                known = first or header
                assert error["code"] == ("unauthorized" if known else "not_authenticated")
                assert await client.wait_closed() == 1008


async def test_a_token_must_come_in_time() -> None:
    async with served(tokens=("right",), open_seconds=0.2) as one:
        # The handshake before it may take as long as it needs.
        one.server._connections.open_seconds = PATIENCE
        async with one.client(greets=False) as client:
            assert (await client.get())["code"] == "not_authenticated"
            assert await client.wait_closed() == 1008


async def test_origins() -> None:
    async with served(origins=("https://good.example",)) as one:
        own = f"http://127.0.0.1:{one.server.port}"
        for origin in ("https://good.example", own):
            async with one.client(headers={"Origin": origin}):
                pass
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://[bad"):
            async with one.client(headers={"Origin": origin}, greets=False) as client:
                assert (await client.get())["code"] == "bad_origin"
                assert await client.wait_closed() == 1008


async def test_a_network_needs_a_token() -> None:
    llm = AsyncLLM("demo")  # never opened
    with pytest.raises(ValueError, match="reached by others"):
        async with serve_websocket(llm, "0.0.0.0", 0):
            pass
    async with serve_websocket(llm, "0.0.0.0", 0, allow_anonymous=True) as server:
        assert server.port > 0


async def test_too_many_connections() -> None:
    """One key is one client, which may have all of them."""
    async with served(max_connections=2, tokens=("key",)) as one, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(one.client("key"))
        async with one.client("key", greets=False) as client:
            error = await client.get()
            assert error["code"] == "overloaded"
            assert error["retry_after"] > 0
            assert await client.wait_closed() == 1013


async def test_one_client_leaves_room_for_the_connections_of_another() -> None:
    """Also for one that says its token in its first message."""
    async with served(max_connections=8, tokens=("a", "b"), open_seconds=60) as one:
        places = one.server.service.places
        async with AsyncExitStack() as stack:
            for count in range(7):
                client = await stack.enter_async_context(
                    one.client(greets=count % 2 == 0, token="a" if count % 2 == 0 else None)
                )
                if count % 2:
                    assert (await client.ask("auth", token="a"))["type"] == "hello"
            for token in ("a", None):
                async with one.client(token, greets=False) as more:
                    error = await (more.get() if token else more.ask("auth", token="a"))
                    assert error["code"] == "overloaded" and error["retry_after"] > 0
                    said = "7 of at most 8 connections are open, 7 of them yours: one client has"
                    assert error["message"].startswith(said)
                    assert await more.wait_closed() == 1013
            for token in ("b", None):
                await wait_for(lambda: places.used == 7)
                async with one.client(token, greets=token is not None) as other:
                    if token is None:
                        assert (await other.ask("auth", token="b"))["type"] == "hello"
                    await other.begin()
                    assert (await other.rest())[1]["type"] == "done"
                    assert places.used == 8
            async with one.client("wrong", greets=False) as stranger:
                assert (await stranger.get())["code"] == "unauthorized"
        await wait_for(lambda: places.used == 0)
        assert not places._held


async def test_other_protocols_and_paths() -> None:
    async with served() as one:
        with pytest.raises((InvalidStatus, NegotiationError)):
            async with connect(one.server.url, subprotocols=["mqtt"]):  # type: ignore[list-item]
                pass
        with pytest.raises(InvalidStatus) as refused:
            async with connect(one.server.url + "/deeper"):
                pass
        assert refused.value.response.status_code == 404
        async with connect(f"ws://127.0.0.1:{one.server.port}/") as wire:
            assert json.loads(await wire.recv())["type"] == "hello"


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
    """A plain request."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        return reply.status, reply.read().decode(), headers
    finally:
        connection.close()


async def test_plain_requests(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    async with served(page=page) as one, one.client() as client:
        port = one.server.port
        await client.begin()
        await client.rest()

        async def ask(path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
            return await anyio.to_thread.run_sync(get, port, path, method)

        for path in ("/healthz", "/readyz"):
            assert (await ask(path))[:2] == (200, "ok\n")
        assert (await ask("/healthz", "HEAD"))[:2] == (200, "")
        figures = (await ask("/metrics"))[1]
        assert "asyncgen_websocket_connections 1.0" in figures
        assert 'vllm:request_success_total{finished_reason="stop",model_name="demo"}' in figures
        assert (await ask("/"))[0] == 200
        page.write_text("<p>äh", encoding="utf-8")
        status, body, headers = await ask("/?a=b")
        assert (status, body) == (200, "<p>äh")
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert headers["x-content-type-options"] == "nosniff"
        assert (await ask("/v1/stream"))[0] == 426
        assert (await ask("/etc/passwd"))[0] == 404
        assert (await ask("/", "DELETE"))[0] == 405


# Bad input: each gets its answer, and nobody else notices.

BAD: list[tuple[str | bytes, str | None]] = [
    ("{", "invalid_json"),
    ("", "invalid_json"),
    ("[" * 100_000, "invalid_json"),
    ('{"type":"ping","nonce":' + "9" * 5000 + "}", "invalid_json"),
    ('{"type":"ping","nonce":' + "9" * 500 + "}", "invalid_message"),
    ('{"type":"ping","nonce":1e999}', "invalid_message"),
    ('{"type":"sing"}', "unknown_type"),
    ('{"type":"generate","id":"z"}', "invalid_message"),
    ('{"type":"generate","id":"z","prompt":"x","more":1}', "invalid_message"),
    ('{"type":"generate","id":7,"prompt":"x"}', "invalid_message"),
    ('{"type":"generate","id":"a","prompt":"x"}', "duplicate_id"),
    ('{"type":"generate","id":"z","prompt":"x","params":{"seed":' + "9" * 400 + "}}", None),
    ('{"type":"generate","id":"z","prompt":"x","params":{"tempo":1}}', "invalid_request"),
    ('{"type":"generate","id":"z","prompt":"x","params":{"top_k":-3}}', "invalid_request"),
    ('{"type":"generate","id":"z","token_ids":[99999]}', "invalid_request"),
    ('{"type":"generate","id":"z","prompt":"x","params":{"n":1000000000}}', "invalid_request"),
    ('{"type":"generate","id":"z","prompt":"' + "x" * 999 + '"}', "context_length"),
    ('{"type":"cancel","id":"never"}', "unknown_id"),
    ('{"type":"resume","id":"z","resume_token":"guess","after":0}', "resume_unknown"),
    (b"\x00\xff", "unsupported_data"),
]


async def test_malformed_input_leaves_other_requests_running() -> None:
    gate = Gate()
    async with served(teller(gate)) as one, one.client() as client, one.client() as other:
        await client.begin("a")
        await other.begin("a")
        for frame, code in BAD:
            await client.socket.send(frame)
            error = await client.get()
            assert error["type"] == "error", frame[:80]
            assert error["code"] == (code or "invalid_request"), (frame[:80], error)
        await client.socket.send(['{"type":"ping",', '"nonce":"pieces"}'])
        assert await client.get() == {"type": "pong", "nonce": "pieces"}
        gate.open()
        for one_of in (client, other):
            text, done = await one_of.rest("a")
            assert (text, done["finish_reason"]) == (STORY, "stop")


async def test_frames_that_end_a_connection_end_no_other() -> None:
    gate = Gate()
    async with served(teller(gate), max_message_bytes=2000) as one, one.client() as other:
        await other.begin()
        for frame, code in (
            (Frame(Opcode.TEXT, b'{"type":"ping","nonce":"\xff"}'), 1007),
            (Frame(Opcode.TEXT, b"x" * 2001), 1009),
            (Frame(Opcode.CONT, b"x"), 1002),
        ):
            async with one.client() as client:
                await client.begin()
                data = frame.serialize(mask=True, extensions=[])
                client.socket.transport.write(data)
                assert await client.wait_closed() == code
        gate.open()
        assert (await other.rest())[0] == STORY


async def test_large_messages_are_read_elsewhere_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    def watched(frame: str) -> object:
        read.append(len(frame))
        return read_large(frame)

    monkeypatch.setattr("asyncgen_apps.websocket.session.read_large", watched)
    async with served() as one, one.client() as client:
        for number in range(4):
            padding = " " * (number % 2 * LARGE)
            await client.socket.send(f'{{"type":"ping","nonce":{number}{padding}}}')
        for number in range(4):
            assert await client.get() == {"type": "pong", "nonce": number}
    assert len(read) == 2


async def test_a_flood_lets_others_through() -> None:
    async with served() as one, one.client() as flood, one.client() as other:
        frame = Frame(Opcode.TEXT, b'{"type":"cancel","id":"x"}')
        flood.socket.transport.write(frame.serialize(mask=True, extensions=[]) * 20_000)
        await other.begin()
        assert (await other.rest())[0] == STORY
        for _ in range(20_000):
            error = await flood.get()
        assert error["code"] == "unknown_id"


# Stopping.


async def forwards_after(one: Any, gate: Gate, leave: Any) -> int:
    """Count the steps after a request was left."""
    begun = gate.arrived
    await leave()
    gate.open()
    await one.wait_idle()
    return gate.arrived - begun


@for_each("how", ["cancel", "close", "kill", "drain"])
@for_each("where", ["decode", "prefill"])
async def test_leaving_stops_within_a_step(how: str, where: str) -> None:
    gate = Gate()
    options = {"prefill_chunk_size": 4}
    async with served(endless(gate), llm=options, grace_seconds=0) as one:
        async with one.client() as client:
            await client.begin(token_ids=[1] * (400 if where == "prefill" else 1))
            gate.allow(2)
            await in_thread(lambda: gate.wait_arrived(3))
            before = gate.arrived
            async with anyio.create_task_group() as group:
                if how == "cancel":
                    await client.send("cancel", id="a")
                elif how == "close":
                    await client.socket.close()
                elif how == "kill":
                    client.kill()
                else:
                    group.start_soon(one.server.drain, 0)
                await wait_for(lambda: not one.server.service._streams or _stopped(one))
                gate.open()
                await one.wait_idle()
            assert gate.arrived - before <= 1
            if how in ("cancel", "drain"):
                with suppress(ConnectionClosed):
                    _, done = await client.rest()
                    expected = "cancelled" if how == "cancel" else "aborted"
                    assert done["finish_reason"] == expected


def _stopped(one: Any) -> bool:
    """Tell whether the engine was told to stop."""
    streams = one.server.service._streams.values()
    return all(stream._cancel.is_set() for stream in streams)


def is_cancelled(stream: Any) -> bool:
    """Tell whether the service has cancelled an `AsyncLLM`'s stream."""
    return bool(stream._cancel.is_set())


@pytest.mark.parametrize("how", ["cancel", "kill"])
async def test_leaving_in_the_queue_never_starts(how: str) -> None:
    gate = Gate()
    async with served(endless(gate), llm={"max_running": 1}, grace_seconds=0) as one:
        async with one.client() as first, one.client() as second:
            await first.begin(params={"max_new_tokens": 2})
            await in_thread(lambda: gate.wait_arrived(1))
            await second.begin(params={"max_new_tokens": 50})
            if how == "kill":
                second.kill()
            else:
                await second.send("cancel", id="a")
            await wait_for(lambda: any(map(is_cancelled, one.server.service._streams.values())))
            gate.open()
            await first.rest()
            await one.wait_idle()
            assert gate.arrived == 2


async def test_cancel_right_after_the_request() -> None:
    async with served(endless()) as one, one.client() as client:
        for number in range(20):
            name = f"r{number}"
            await client.send("generate", id=name, token_ids=[1])
            await client.send("cancel", id=name)
            _, done = await client.rest(name)
            assert done["finish_reason"] == "cancelled"


# Faults.


async def test_a_killed_client_gets_the_rest_later() -> None:
    gate = Gate()
    async with served(teller(gate)) as one:
        async with one.client() as client:
            token = await client.begin()
            gate.allow(3)
            seen = ""
            while len(seen) < 3:
                delta = await client.get()
                seen += delta["text"]
            client.kill()
        await wait_for(lambda: one.server.service.counters.connections == 0)
        gate.open()
        async with one.client() as client:
            accepted = await client.ask("resume", id="b", resume_token=token, after=delta["seq"])
            assert accepted["type"] == "accepted"
            text, done = await client.rest("b", seq=delta["seq"])
            assert seen + text == STORY
            assert done["finish_reason"] == "stop"


async def test_the_time_of_grace_ends() -> None:
    gate = Gate()
    async with served(endless(gate), grace_seconds=0.05) as one:
        async with one.client() as client:
            token = await client.begin()
            await in_thread(lambda: gate.wait_arrived(1))
            client.kill()
        await wait_for(lambda: len(one.server.service.registry) == 0)
        gate.open()
        await one.wait_idle()
        async with one.client() as client:
            error = await client.ask("resume", id="a", resume_token=token, after=0)
            assert error["code"] == "resume_unknown"


async def test_a_new_connection_takes_a_half_open_one_over() -> None:
    gate = Gate()
    async with served(teller(gate)) as one, one.client() as old, one.client() as new:
        token = await old.begin()
        await new.ask("resume", id="a", resume_token=token, after=0)
        assert (await old.get())["code"] == "resume_moved"
        gate.open()
        assert (await new.rest())[0] == STORY


def stalled(port: int) -> socket.socket:
    """A client that asks for an endless answer and never reads."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    wire.connect(("127.0.0.1", port))
    wire.sendall(
        b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\n\r\n"
    )
    return wire


@pytest.mark.gate
async def test_a_stalled_reader_is_dropped_and_others_go_on() -> None:
    async with served(endless(), send_seconds=1.0, grace_seconds=0, max_requests=64) as one:
        wire = stalled(one.server.port)
        try:
            for number in range(32):
                request: dict[str, Any] = {"type": "generate", "id": str(number), "token_ids": [1]}
                request |= {"events": "tokens", "params": {"top_logprobs": 20}}
                frame = Frame(Opcode.TEXT, json.dumps(request).encode())
                wire.sendall(frame.serialize(mask=True, extensions=[]))
            async with one.client() as other:
                figures = one.server.service.counters
                while not figures.dropped:  # it goes on all the time
                    await other.begin(params={"max_new_tokens": 50})
                    assert (await other.rest())[1]["finish_reason"] == "length"
            await wait_for(lambda: one.server.service.registry.num_running == 0)
            await one.wait_idle()
        finally:
            wire.close()


async def test_a_half_open_socket_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgen_apps.websocket.connection_server.CLOSE_SECONDS", 0.1)
    async with served(endless(), heartbeat_seconds=0.1, grace_seconds=0) as one:
        has_begun = False
        while not has_begun:
            # Where the machine stands still, so do its pongs, and it is noticed too early.
            with suppress(ConnectionClosed):
                async with one.client(ping_interval=None) as client:
                    await client.begin()
                    has_begun = True
                    client.socket.transport.pause_reading()  # as good as gone: no pong, no close
                    await wait_for(lambda: one.server.service.counters.connections == 0)
                    await one.wait_idle()
                    client.kill()


async def test_the_decode_thread_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    class Death(BaseException):
        pass

    def die(engine: object) -> None:
        raise Death

    async with served(teller(gate)) as one, one.client() as client:
        await client.begin("a")
        await client.send("generate", id="b", token_ids=[1])
        monkeypatch.setattr("asyncgen.engine.core.Engine.step", die)
        gate.open()
        ends: dict[str, str] = {}
        while len(ends) < 2:
            message = await client.get()
            if message["type"] == "error":
                ends[message["id"]] = message["code"]
        assert ends == {"a": "engine_dead", "b": "engine_dead"}
        refused = await client.ask("generate", id="c", token_ids=[1])
        assert (refused["code"], refused["id"]) == ("engine_dead", "c")
        for path in ("/healthz", "/readyz"):
            status, body, _ = await anyio.to_thread.run_sync(get, one.server.port, path)
            assert (status, body) == (503, "the engine is dead\n")


# Leaving.


async def test_a_drain_lets_streams_finish() -> None:
    gate = Gate()
    async with served(teller(gate)) as one, one.client() as client, one.client() as idle:
        await client.begin()
        async with anyio.create_task_group() as group:
            group.start_soon(one.server.drain, PATIENCE)
            assert await idle.wait_closed() == 1001
            refused = await client.ask("generate", id="b", token_ids=[1])
            assert (refused["code"], refused["id"]) == ("draining", "b")
            async with one.client(greets=False) as late:
                error = await late.get()
                assert error["code"] == "draining"
                assert error["retry_after"] > 0
                assert await late.wait_closed() == 1013
            status, body, _ = await anyio.to_thread.run_sync(get, one.server.port, "/readyz")
            assert (status, body) == (503, "draining\n")
            gate.open()
            text, done = await client.rest()
            assert (text, done["finish_reason"]) == (STORY, "stop")
            assert await client.wait_closed() == 1001


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last words of a drain take as long as a slow machine needs."""
    monkeypatch.setattr("asyncgen_apps.websocket.service.FLUSH_SECONDS", PATIENCE)


@pytest.mark.usefixtures("unhurried")
async def test_finished_drain_sends_the_generated_text() -> None:
    gate = Gate()
    async with served(endless(gate)) as one, one.client() as client:
        await client.begin()
        gate.allow(4)
        await in_thread(lambda: gate.wait_arrived(5))
        async with anyio.create_task_group() as group:
            group.start_soon(one.server.drain, 0)
            await wait_for(lambda: _stopped(one))
            gate.open()
            text, done = await client.rest()
        assert done["finish_reason"] == "aborted"
        assert done["text"] == text != ""
        assert await client.wait_closed() == 1001


async def test_queued_requests_are_drained() -> None:
    gate = Gate()
    async with (
        served(endless(gate), llm={"max_running": 1}) as one,
        one.client() as first,
        one.client() as second,
        anyio.create_task_group() as group,
    ):
        await first.begin(params={"max_new_tokens": 2})
        await in_thread(lambda: gate.wait_arrived(1))
        await second.begin(params={"max_new_tokens": 3})
        group.start_soon(one.server.drain, PATIENCE)
        await wait_for(lambda: one.server.service.is_draining)
        gate.open()
        for client, tokens in ((first, 2), (second, 3)):
            _, done = await client.rest()
            assert done["finish_reason"] == "length"
            assert done["usage"]["completion_tokens"] == tokens
            assert await client.wait_closed() == 1001


@pytest.mark.usefixtures("unhurried")
async def test_a_drain_that_is_over_ends_the_queue_too() -> None:
    gate = Gate()
    async with (
        served(endless(gate), llm={"max_running": 1}) as one,
        one.client() as first,
        one.client() as second,
        anyio.create_task_group() as group,
    ):
        await first.begin()
        await in_thread(lambda: gate.wait_arrived(1))
        await second.begin()
        group.start_soon(one.server.drain, 0)
        await wait_for(lambda: _stopped(one))
        gate.open()
        for client in (first, second):
            _, done = await client.rest()
            assert done["finish_reason"] == "aborted"
            assert await client.wait_closed() == 1001
        assert gate.arrived == 1  # the second one never started


async def test_lost_connections_leave_no_requests() -> None:
    async with served(endless()) as one:
        for _ in range(3):
            async with one.client() as client:
                for number in range(4):
                    await client.begin(str(number))
        await one.wait_idle()
        service = one.server.service
        await wait_for(lambda: not service._streams and not service._sessions)
        assert len(service.registry) == 0


async def test_hello_reports_the_limits() -> None:
    settings = StreamSettings(max_requests=3, replay_bytes=5000)
    async with served(max_requests=3, replay_bytes=5000) as one, one.client() as client:
        told = settings.sized(one.server.service.llm).limits.model_dump()
        assert client.hello["limits"] == told
        assert client.hello["model"] == "demo"
