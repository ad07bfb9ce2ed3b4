"""The server around an application of a few lines, and sockets that say what they like to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.openai_http import Gate, ServerSettings
from asyncgen_apps.openai_http.server import Server, bind
from tests.apps.openai_http.running import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import Receive, Scope, Send


@dataclass
class Plain:
    """A server that runs.

    Attributes:
        port: Where.
        server: It.
        seen: Heads that came to the application.
        left: Paths of the requests that were told that their client has left.
        call: Calls something on the server's loop.
        release: Ends the answers of ``/wait``.
    """

    port: int
    server: Server
    seen: list[Scope]
    left: list[str]
    call: Callable[[Callable[[], None]], object]
    release: Callable[[], object]

    @property
    def num_open(self) -> int:
        """Connections that the server has."""
        return len(self.server.server_state.connections)

    def dial(self) -> socket.socket:
        """Connect."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def get(self, path: str = "/") -> bytes:
        """Ask on a connection of its own; return all that comes."""
        with self.dial() as wire:
            try:
                wire.sendall(request(path, b"Connection: close"))
            except ConnectionError:
                return b""
            return rest(wire)


def request(path: str = "/", *headers: bytes, method: str = "GET", body: bytes = b"") -> bytes:
    """A request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: x", *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


def rest(wire: socket.socket) -> bytes:
    """Read until the server closes, however it does."""
    found = b""
    try:
        while piece := wire.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def reply(wire: socket.socket) -> tuple[int, bytes]:
    """Read one reply with a length; return its status and body."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = wire.recv(1)
        assert piece, head
        head += piece
    length = next(
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    body = b""
    while len(body) < length:
        piece = wire.recv(length - len(body))
        assert piece
        body += piece
    return int(head.split()[1]), body


@contextmanager
def plain(*, backend: dict[str, Any] | None = None, **settings: Any) -> Iterator[Plain]:
    """Run it for as long as the block does.

    Every path says what it got, as JSON; ``/wait`` holds its answer back, ``/watch`` waits for its
    client to leave, ``/deaf`` answers without reading, and ``/huge`` says more than fits into
    sockets' buffers.
    """
    listener = bind("127.0.0.1", 0)
    seen: list[Scope] = []
    left: list[str] = []
    ready = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    go: list[anyio.Event] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        seen.append(scope)
        size, more = 0, scope["path"] != "/deaf"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        if scope["path"] == "/wait":
            await go[0].wait()
        if scope["path"] == "/watch":
            assert (await receive())["type"] == "http.disconnect"
            left.append(scope["path"])
            return
        said = {"path": scope["path"], "headers": len(scope["headers"]), "body": size}
        content = json.dumps(said).encode() + b" " * (8_000_000 * (scope["path"] == "/huge"))
        length = (b"content-length", str(len(content)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": content})

    gate = Gate(100)
    server = Server(app, gate, ServerSettings(("demo",), **settings), drain_seconds=0.05)
    server.config.lifespan = "off"

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        go.append(anyio.Event())
        ready.set()
        await server.serve(sockets=[listener])

    thread = threading.Thread(
        target=lambda: anyio.run(main, backend_options=backend or {}), name="plain-server"
    )
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        call = loops[0].call_soon_threadsafe
        yield Plain(listener.getsockname()[1], server, seen, left, call, lambda: call(go[0].set))
    finally:
        for _ in range(2):
            loops[0].call_soon_threadsafe(server.leave)
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive()
