"""A real server over a real engine whose model is a table, and a client that knows only JSON."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from websockets.asyncio.client import connect

from asyncgen import AsyncLLM
from asyncgen_apps.websocket.messages import SERVER_MESSAGE, SUBPROTOCOL
from asyncgen_apps.websocket.server import serve_websocket
from asyncgen_apps.websocket.settings import StreamSettings
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from websockets.asyncio.client import ClientConnection

    from asyncgen_apps.websocket.server import StreamServer

PATIENCE = 60.0
STORY = "There was a fox 🦊 who lived by the sea. " * 4
"""What :func:`teller` says."""


def teller(hook: Any = None) -> TableModel:
    """A model that tells the story after any prompt of one byte."""
    return TableModel(script=STORY, prompt_length=1, hook=hook)


def endless(hook: Any = None) -> TableModel:
    """A model that babbles until it is stopped."""
    return TableModel(hook=hook, context_length=100_000)


@dataclass
class Served:
    """A server that runs, and what is behind it."""

    server: StreamServer
    llm: AsyncLLM
    model: TableModel

    @asynccontextmanager
    async def client(self, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
        """Connect; the hello was read, unless there is none."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        greets = options.pop("greets", True)
        async with connect(
            self.server.url,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            additional_headers={**headers, **options.pop("headers", {})},
            compression=None,
            **options,
        ) as socket:
            client = Client(socket)
            if greets:
                client.hello = await client.get()
                assert client.hello["type"] == "hello", client.hello
            yield client

    async def wait_idle(self) -> None:
        """Wait until the engine has nothing to do."""
        await wait_for(lambda: self.unfinished == 0)

    @property
    def unfinished(self) -> int:
        """Requests that the engine has."""
        shot = self.llm.metrics()
        return shot.requests_running + shot.requests_waiting


@dataclass
class Client:
    """A connection with JSON on it."""

    socket: ClientConnection
    hello: dict[str, Any] = field(default_factory=dict)

    async def send(self, kind: str, **fields: Any) -> None:
        """Send a message."""
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def get(self) -> dict[str, Any]:
        """Receive one, and check that it is one."""
        with anyio.fail_after(PATIENCE):
            frame = await self.socket.recv()
        SERVER_MESSAGE.validate_json(frame)
        return json.loads(frame)

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a message and get the next one."""
        await self.send(kind, **fields)
        return await self.get()

    async def begin(self, request_id: str = "a", **fields: Any) -> str:
        """Start a request; return its resume token."""
        fields = {"token_ids": [1], **fields}
        await self.send("generate", id=request_id, **fields)
        while (accepted := await self.get()).get("id") != request_id:
            pass  # of another request
        assert accepted["type"] == "accepted", accepted
        return str(accepted["resume_token"])

    async def rest(self, request_id: str = "a", seq: int = 0) -> tuple[str, dict[str, Any]]:
        """Read a request to its end: the text behind ``seq``, and the last message."""
        text = ""
        while True:
            message = await self.get()
            if message.get("id") != request_id:
                continue
            if message["type"] == "delta":
                assert message.get("first_seq", message["seq"]) == seq + 1
                seq = message["seq"]
                text += message["text"]
            elif message["type"] in ("done", "error"):
                assert message.get("seq", seq + 1) == seq + 1
                return text, message

    async def wait_closed(self) -> int | None:
        """Wait for the server to close; return its code."""
        with anyio.fail_after(PATIENCE):
            await self.socket.wait_closed()
        return self.socket.close_code

    def kill(self) -> None:
        """End the connection without a farewell."""
        self.socket.transport.abort()


@asynccontextmanager
async def served(
    model: TableModel | None = None,
    *,
    llm: dict[str, Any] | None = None,
    page: Any = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Run a server; ``settings`` are fields of ``StreamSettings``."""
    model = model or teller()
    async with (
        AsyncLLM(model, tokenizer=byte_tokenizer(), **(llm or {})) as engine,
        serve_websocket(
            engine, "127.0.0.1", 0, settings=StreamSettings(**settings), page=page
        ) as server,
    ):
        yield Served(server, engine, model)


async def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so that no event tells of."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)


async def in_thread(call: Callable[[], object]) -> None:
    """Run a call that waits on a worker thread, so that the loop goes on."""
    await anyio.to_thread.run_sync(call)
