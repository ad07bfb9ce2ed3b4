"""A real server on the loopback, in a thread of its own, for clients that know nothing of it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.openai_http import ServerSettings, create_app
from asyncgen_apps.openai_http.server import Server, bind
from asyncgen_apps.openai_http.websocket_streams import stream_settings, with_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncgen import AsyncLLM, MetricsSnapshot
    from asyncgen_apps.openai_http import Gate
    from tests.apps.engine_process import EngineProcess

PATIENCE = 60.0


@dataclass
class Running:
    """A server that runs.

    Attributes:
        port: Where.
        ws_port: Where the server of streams alone is.
        llm: Its engine.
        gate: Counts what generates.
        server: To let it leave.
        loop: Calls something on its loop.
    """

    port: int
    ws_port: int
    llm: AsyncLLM | EngineProcess
    gate: Gate
    server: Server
    call: Callable[[Callable[[], None]], None]

    @property
    def url(self) -> str:
        """Base of the API, as clients want it."""
        return f"http://127.0.0.1:{self.port}/v1"

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Send one request and read the whole reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            kind = {} if raw is None else {"content-type": "application/json"}
            connection.request(method, path, raw, {**kind, **(headers or {})})
            got = connection.getresponse()
            found = {name.lower(): value for name, value in got.getheaders()}
            return Reply(got.status, found, got.read())
        finally:
            connection.close()

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        """Send a body below ``/v1``."""
        return self.request("POST", f"/v1{path}", body, headers)

    def begin(self, path: str, body: object) -> socket.socket:
        """Send a request and leave the reply on the wire."""
        raw = json.dumps(body).encode()
        head = (
            f"POST /v1{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n"
        )
        wire = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        wire.sendall(head.encode() + raw)
        return wire

    def wait_idle(self) -> None:
        """Wait until nothing runs, neither here nor in the engine."""
        wait_for(lambda: self.gate.count == 0 and self.unfinished() == 0)

    def figures(self) -> MetricsSnapshot:
        """Return the engine's metrics."""
        return anyio.run(self.llm.measure)

    def unfinished(self) -> int:
        """Requests that the engine has."""
        figures = self.figures()
        return int(figures.requests_running + figures.requests_waiting)


@dataclass(frozen=True)
class Reply:
    """Reply of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as an object."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a reply that is one."""
        found = self.json()["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found

    def events(self) -> list[Any]:
        """The events of a stream; the mark of its end stays text."""
        lines = self.body.decode().split("\n\n")
        datas = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so that no event tells of."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def reference(served: Running, prompt: Any, **params: Any) -> Any:
    """Return the library's own answer, on a loop of its own."""

    async def ask() -> Any:
        return await served.llm.generate(prompt, **params)

    return anyio.run(ask)


@contextmanager
def running(
    make: Callable[[], AsyncLLM | EngineProcess],
    *,
    drain_seconds: float = 5.0,
    notice_seconds: float = 0.0,
    streams: dict[str, Any] | None = None,
    send_buffer: int | None = None,
    uvloop: bool = False,
    **settings: Any,
) -> Iterator[Running]:
    """Run a server for as long as the block does; nothing of it survives.

    Args:
        make: Makes its engine.
        drain_seconds: Longest time for requests when it leaves.
        notice_seconds: Time between the first signal and the drain.
        streams: Fields of ``StreamSettings`` that the command does not set.
        send_buffer: Bytes that the system keeps of what a client does not read.
        uvloop: Run on uvloop, as the command does where it is installed.
        **settings: Fields of ``ServerSettings``.
    """
    found: list[Running] = []
    failures: list[BaseException] = []
    ready = threading.Event()
    listener, second = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    for each in (listener, second):
        if send_buffer is not None:  # connections inherit it
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port, ws_port = listener.getsockname()[1], second.getsockname()[1]

    async def main() -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        async with make() as llm:
            chosen = ServerSettings(**{"model_names": ("demo",), **settings})
            app = create_app(llm, chosen)
            gate = app.state.gate
            chosen_streams = replace(stream_settings(chosen, drain_seconds), **(streams or {}))

            def call(function: Callable[[], None]) -> None:
                loop.call_soon_threadsafe(function)

            async with with_streams(app, llm, gate, chosen_streams, second) as sockets:
                server = Server(
                    app,
                    gate,
                    chosen,
                    drain_seconds=drain_seconds,
                    notice_seconds=notice_seconds,
                    drain_streams=sockets.drain,
                    sockets=sockets.sockets,
                )
                found.append(Running(port, ws_port, llm, gate, server, call))
                ready.set()
                await server.serve(sockets=[listener])

    def run() -> None:
        try:
            anyio.run(main, backend_options={"use_uvloop": uvloop})
        except BaseException as error:
            failures.append(error)
        finally:
            listener.close()
            second.close()
            ready.set()

    thread = threading.Thread(target=run, name="http-server")
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        if failures:
            raise failures[0]
        yield found[0]
    finally:
        if found and thread.is_alive():
            found[0].call(found[0].server.leave)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
