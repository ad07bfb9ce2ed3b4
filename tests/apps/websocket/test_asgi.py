"""The same streams through an ASGI application: in memory on both loops, and under uvicorn."""

from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from starlette.applications import Starlette

from asyncgen import AsyncLLM
from asyncgen_apps.websocket.asgi import stream_route
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.service import StreamService
from asyncgen_apps.websocket.settings import StreamSettings
from tests.apps.websocket.serving import PATIENCE, STORY, endless, teller, wait_for
from tests.doubles.engine import no_thread_left
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.doubles.models import TableModel

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio


class Peer:
    """Both ends of one connection, as a server of ASGI has them."""

    def __init__(self) -> None:
        self.to_app, self._inbox = anyio.create_memory_object_stream[dict[str, Any]](100)
        self._outbox, self.from_app = anyio.create_memory_object_stream[dict[str, Any]](1000)
        self.is_stalled = False

    def close(self) -> None:
        for end in (self.to_app, self._inbox, self._outbox, self.from_app):
            end.close()

    async def receive(self) -> dict[str, Any]:
        return await self._inbox.receive()

    async def send(self, message: Any) -> None:
        if self.is_stalled:
            await anyio.sleep_forever()
        await self._outbox.send(message)

    async def say(self, **message: Any) -> None:
        frame = {"type": "websocket.receive", "text": json.dumps(message)}
        await self.to_app.send(frame)

    async def get(self) -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            return await self.from_app.receive()

    async def hear(self) -> dict[str, Any]:
        message = await self.get()
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])


@asynccontextmanager
async def mounted(
    model: TableModel, headers: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[tuple[Peer, StreamService]]:
    """An application with one connection to it, before the handshake."""
    peer = Peer()
    async with (
        AsyncLLM(model, tokenizer=byte_tokenizer()) as llm,
        StreamService(llm, StreamSettings(**settings)) as service,
        anyio.create_task_group() as group,
    ):
        app = Starlette(routes=[stream_route(service)])
        scope = {
            "type": "websocket",
            "path": "/v1/stream",
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "subprotocols": ["asyncgen.v1"],
            "client": ("test", 1),
        }
        group.start_soon(app, scope, peer.receive, peer.send)
        await peer.to_app.send({"type": "websocket.connect"})
        accepted = await peer.get()
        assert (accepted["type"], accepted["subprotocol"]) == ("websocket.accept", "asyncgen.v1")
        try:
            yield peer, service
        finally:
            group.cancel_scope.cancel()
            peer.close()


async def test_a_request() -> None:
    async with mounted(teller()) as (peer, service):
        assert (await peer.hear())["type"] == "hello"
        await peer.say(type="generate", id="a", token_ids=[1])
        assert (await peer.hear())["type"] == "accepted"
        text = ""
        while (message := await peer.hear())["type"] == "delta":
            text += message["text"]
        assert (text, message["finish_reason"]) == (STORY, "stop")
        await peer.to_app.send({"type": "websocket.disconnect", "code": 1000})
        await wait_for(lambda: service.counters.connections == 0)


async def test_client_that_leaves_stops_its_request() -> None:
    async with mounted(endless(), grace_seconds=0) as (peer, service):
        await peer.hear()
        await peer.say(type="generate", id="a", token_ids=[1])
        await peer.hear()
        await peer.to_app.send({"type": "websocket.disconnect", "code": 1006})
        await wait_for(lambda: not service._streams)


async def test_client_that_reads_nothing_is_disconnected() -> None:
    async with mounted(endless(), send_seconds=0.2, grace_seconds=0) as (peer, service):
        await peer.hear()
        peer.is_stalled = True
        await peer.say(type="generate", id="a", token_ids=[1])
        await wait_for(lambda: service.counters.dropped == 1 and not service._streams)


async def test_it_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last words take as long as a slow machine needs.
    monkeypatch.setattr("asyncgen_apps.websocket.service.FLUSH_SECONDS", PATIENCE)
    async with mounted(endless()) as (peer, service):
        await peer.hear()
        await peer.say(type="generate", id="a", token_ids=[1])
        await peer.hear()
        await service.drain(0)
        while (message := await peer.hear())["type"] == "delta":
            pass
        assert message["finish_reason"] == "aborted"
        closed = await peer.get()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1001)


async def test_tokens_and_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    large = partial(Fault, "invalid_json")
    async with mounted(teller(), tokens=("right",), max_message_bytes=100) as (peer, _):
        await peer.say(type="auth", token="right")
        assert (await peer.hear())["type"] == "hello"
        await peer.to_app.send({"type": "websocket.receive", "bytes": b"\0"})
        assert (await peer.hear())["code"] == "unsupported_data"
        monkeypatch.setattr("asyncgen_apps.websocket.session.LARGE", 50)
        monkeypatch.setattr("asyncgen_apps.websocket.session.read_large", large)
        await peer.to_app.send({"type": "websocket.receive", "text": "x" * 51})
        assert (await peer.hear())["message"] == "x" * 51
        await peer.to_app.send({"type": "websocket.receive", "text": "x" * 101})
        assert (await peer.hear())["code"] == "message_too_big"
        assert (await peer.get())["code"] == 1009
    async with mounted(teller(), {"authorization": "Bearer x"}, tokens=("right",)) as (peer, _):
        assert (await peer.hear())["code"] == "unauthorized"
        assert (await peer.get())["code"] == 1008
    async with mounted(teller(), tokens=("right",), open_seconds=0.05) as (peer, _):
        assert (await peer.hear())["code"] == "not_authenticated"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_under_uvicorn() -> None:
    import uvicorn
    from websockets.asyncio.client import connect

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with (
            AsyncLLM(teller(), tokenizer=byte_tokenizer()) as llm,
            StreamService(llm) as service,
            anyio.create_task_group() as group,
        ):
            app = Starlette(routes=[stream_route(service)])
            config = uvicorn.Config(
                app, log_level="warning", lifespan="off", ws="websockets-sansio"
            )
            server = uvicorn.Server(config)
            group.start_soon(server._serve, [listener])
            async with connect(f"ws://127.0.0.1:{port}/v1/stream") as wire:
                await wire.recv()
                await wire.send('{"type":"generate","id":"a","token_ids":[1]}')
                text, message = "", {"type": ""}
                while message["type"] != "done":
                    message = json.loads(await wire.recv())
                    text += message.get("text", "")
                assert text == STORY
            server.should_exit = True
