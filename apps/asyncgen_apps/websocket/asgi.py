"""Serve the streams as a WebSocket endpoint of an ASGI application.

The application owns the port, TLS and the other routes; an entered :class:`StreamService` does the
rest:

```python
async with AsyncLLM("demo") as llm, StreamService(llm) as service:
    app.router.routes.append(stream_route(service))
    ...  # run the application; then, before it ends:
    await service.drain()
```
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from starlette.routing import WebSocketRoute

from asyncgen_apps.serving.origins import is_host_of
from asyncgen_apps.serving.time_slices import BYTES_OF_A_TURN
from asyncgen_apps.websocket.messages import SUBPROTOCOL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.websockets import WebSocket

    from asyncgen_apps.websocket.service import StreamService
    from asyncgen_apps.websocket.session import Session


_NO_CODE, _BROKEN = 1005, 1006

_log = logging.getLogger("asyncgen.websocket")


def stream_route(service: StreamService, path: str = "/v1/stream") -> WebSocketRoute:
    """Make a route for an application.

    Args:
        service: Service that stays entered while the application runs.
        path: Path of the endpoint.
    """
    return WebSocketRoute(path, stream_endpoint(service), name="stream")


def stream_endpoint(service: StreamService) -> Callable[[WebSocket], Awaitable[None]]:
    """Make an endpoint: a coroutine function that takes a Starlette WebSocket.

    Args:
        service: Service that stays entered while the application runs.
    """

    async def stream(websocket: WebSocket) -> None:
        """Serve one connection."""
        await _Endpoint(service, websocket).run()

    return stream


class _Endpoint:
    """Serves one connection by a task that reads, and one that writes the session's frames."""

    def __init__(self, service: StreamService, websocket: WebSocket) -> None:
        self._service = service
        self._websocket = websocket
        self._ready = anyio.Event()
        self._drained = anyio.Event()
        self._scope = anyio.CancelScope()
        self._code: int | None = None

    async def run(self) -> None:
        """Serve until the client or the server closes the connection."""
        websocket = self._websocket
        headers = websocket.headers
        offered = websocket.scope.get("subprotocols", [])
        if not is_host_of(_header(headers.getlist("host")), self._service.settings.allowed_hosts):
            await websocket.close(1008)  # refuses the handshake
            return
        if offered and SUBPROTOCOL not in offered:
            await websocket.close(1002)  # refuses the handshake
            return
        await websocket.accept(SUBPROTOCOL if offered else None)
        client = websocket.client
        session = self._service.open(
            authorization=_header(headers.getlist("authorization")),
            origin=_header(headers.getlist("origin")),
            host=_header(headers.getlist("host")),
            peer=None if client is None else f"{client.host}:{client.port}",
            remote=None if client is None else client.host,
            forwarded_for=_header(headers.getlist("x-forwarded-for")),
        )
        session.bind(self._wake, self._scope.cancel)
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._read, session, group.cancel_scope)
                    await self._write(session)
                    group.cancel_scope.cancel()
        finally:
            session.leave(self._code)

    def _wake(self) -> None:
        self._ready.set()

    async def _write(self, session: Session) -> None:
        """Send the session's frames, until it closes or the client reads nothing."""
        websocket, seconds = self._websocket, self._service.settings.send_seconds
        while True:
            await self._ready.wait()
            self._ready = anyio.Event()
            # Wait a turn of the loop, so that one write has the output of all streams.
            await anyio.lowlevel.checkpoint()
            frames = session.take(BYTES_OF_A_TURN)
            if session.has_more:
                self._ready.set()
            try:
                with anyio.fail_after(seconds):
                    for frame in frames:
                        await websocket.send_text(frame.decode())
                    if session.closing is not None:
                        await websocket.close(session.closing.code, session.closing.reason)
                        return
            except TimeoutError:
                session.give_up()
                return
            except (OSError, RuntimeError):
                return  # disconnected: the exception depends on the ASGI server
            self._drained.set()
            self._drained = anyio.Event()

    async def _read(self, session: Session, running: anyio.CancelScope) -> None:
        """Pass frames to the session until the client disconnects."""
        with suppress(_Disconnected):
            await session.read(self._receive, self._wait_drained)
        running.cancel()

    async def _receive(self) -> str | bytes:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code", _NO_CODE)
            # uvicorn reports a connection that breaks as one that was closed without a code.
            self._code = None if code in (_NO_CODE, _BROKEN) else code
            raise _Disconnected
        text: str | None = message.get("text")
        return text if text is not None else message.get("bytes") or b""

    async def _wait_drained(self) -> None:
        await self._drained.wait()


class _Disconnected(Exception):
    """Raised when the client has disconnected."""


def _header(values: list[str]) -> str | None:
    """Return a header's value; joining repeated ones makes them invalid, so none is accepted."""
    return ", ".join(values) or None
