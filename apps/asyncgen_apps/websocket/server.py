"""Serve ``asyncgen.v1`` on its own port, with the ``websockets`` library on asyncio.

TLS and rate limits are the task of a proxy in front.
"""

from __future__ import annotations

import asyncio
import email.utils
import http
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, NegotiationError
from websockets.http11 import Response
from websockets.protocol import State

from asyncgen_apps.serving.origins import is_address, is_loopback
from asyncgen_apps.serving.sockets import listen
from asyncgen_apps.websocket.connection import ConnectionLimit, FlushQueue, StreamConnection
from asyncgen_apps.websocket.http_routes import PAGE, STREAM_PATHS, HttpRoutes
from asyncgen_apps.websocket.messages import SUBPROTOCOL
from asyncgen_apps.websocket.service import StreamService
from asyncgen_apps.websocket.settings import StreamSettings

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request
    from websockets.typing import Subprotocol

    from asyncgen_apps.engine import Engine
    from asyncgen_apps.websocket.http_routes import HttpReply


CLOSE_SECONDS = 5.0
"""Longest time of a closing handshake."""

_MAX_QUEUE = 16
_BACKLOG = 1024

_log = logging.getLogger("asyncgen.websocket.library")


class StreamServer:
    """A server that runs.

    Attributes:
        service: Requests and limits of all connections.
    """

    def __init__(self, service: StreamService, server: Server, host: str) -> None:
        """Keep the started server; :func:`serve_websocket` does it."""
        self.service = service
        self._server = server
        self._host = host

    @property
    def port(self) -> int:
        """Port that it listens on."""
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """URL that clients connect to."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"ws://{host}:{self.port}/v1/stream"

    async def drain(self, seconds: float | None = None) -> None:
        """Refuse new requests, let streams finish, and close with 1001; then leave the block.

        Args:
            seconds: Time for running streams; by default ``drain_seconds`` of the settings.
        """
        await self.service.drain(seconds)


@asynccontextmanager
async def serve_websocket(
    llm: Engine,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    settings: StreamSettings | None = None,
    allow_anonymous: bool = False,
    page: Path | None = PAGE,
    sock: socket.socket | None = None,
) -> AsyncIterator[StreamServer]:
    """Serve a model's streams over WebSocket for as long as the block runs.

    Leaving the block ends all streams and tells the clients; call :meth:`StreamServer.drain` before
    to let them finish. Needs asyncio.

    Args:
        llm: An open engine; closing it is up to the caller.
        host: Address to listen on.
        port: Port; 0 chooses one, see :attr:`StreamServer.port`.
        settings: Limits, tokens, times.
        allow_anonymous: True serves without a token even if other machines reach the address.
        page: File for ``GET /``; ``None`` for no page.
        sock: Listening socket, in place of ``host`` and ``port``.

    Yields:
        The listening server.

    Raises:
        ValueError: There is no token, and other machines reach the address.
        OSError: The port is in use, or the address is not of this machine.

    Example:
        ```python
        async with AsyncLLM("demo") as llm, serve_websocket(llm, port=8765) as server:
            await anyio.sleep_forever()
        ```
    """
    settings = settings or StreamSettings()
    if sock is not None:
        host = sock.getsockname()[0]
    if not settings.tokens and not allow_anonymous and not is_loopback(host):
        raise ValueError(
            f"{host} is reached by others: give a token, or allow_anonymous=True "
            "(--allow-anonymous)"
        )
    async with StreamService(llm, settings) as service:
        limit = ConnectionLimit(settings.max_connections)
        handler = _ConnectionServer(service, HttpRoutes(service, page=page))
        options = _listen_options(host, port, sock)
        settings = service.settings
        server = await serve(
            handler.serve_connection,  # type: ignore[arg-type]  # of class StreamConnection
            **options,
            backlog=_BACKLOG,
            compression=None,  # frames are tiny, and it would cost 50 KiB a connection
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            select_subprotocol=_select_subprotocol,
            process_request=handler.process_request,
            server_header=None,
            open_timeout=settings.open_seconds,
            ping_interval=settings.heartbeat_seconds,
            ping_timeout=settings.heartbeat_seconds,
            close_timeout=CLOSE_SECONDS,
            max_size=settings.max_message_bytes,
            max_queue=_MAX_QUEUE,
            logger=_log,
            create_connection=partial(StreamConnection, limit),  # type: ignore[arg-type]
        )
        try:
            yield StreamServer(service, server, host)
        finally:
            await service.drain(0)
            server.close()
            await server.wait_closed()


def _listen_options(host: str, port: int, sock: socket.socket | None) -> dict[str, Any]:
    """Return the arguments for the address to listen on; asyncio resolves names."""
    if sock is None and is_address(host):
        sock = listen(host, port, _BACKLOG)
    return {"sock": sock} if sock is not None else {"host": host, "port": port}


class _ConnectionServer:
    """Serves the connections of one server."""

    def __init__(self, service: StreamService, plain: HttpRoutes) -> None:
        self._service = service
        self._plain = plain
        self._flush_queue = FlushQueue()

    async def process_request(
        self, connection: ServerConnection, request: Request
    ) -> Response | None:
        """Answer plain HTTP requests; the library continues with handshakes."""
        host = _header(request, "Host")
        refused = self._plain.refusal(request.path, host)
        is_handshake = _header(request, "Upgrade") is not None
        if refused is not None:
            return _response(refused if not is_handshake else replace(refused, status=403))
        if is_handshake and request.path.partition("?")[0] in STREAM_PATHS:
            return None
        if request.method not in ("GET", "HEAD"):
            return None  # the library answers with 405
        path = request.path if not is_handshake else "/nothing"
        return _response(await self._plain.reply(path, _header(request, "Authorization")))

    async def serve_connection(self, connection: StreamConnection) -> None:
        """Read one connection until it ends."""
        service = self._service
        assert connection.request is not None
        session = service.open(
            authorization=_header(connection.request, "Authorization"),
            origin=_header(connection.request, "Origin"),
            host=_header(connection.request, "Host"),
            peer=_peer_name(connection.remote_address),
            remote=_peer_address(connection.remote_address),
            forwarded_for=_header(connection.request, "X-Forwarded-For"),
        )
        connection.attach(session, service.settings.send_seconds, self._flush_queue)

        async def wait_writable() -> None:
            # A closing connection sends nothing more; it is read on, to notice its end.
            while session.is_congested and connection.state is State.OPEN:
                await connection.wait_writable()
                await asyncio.sleep(0)

        try:
            await session.read(connection.recv, wait_writable)
        except ConnectionClosed:
            pass
        finally:
            received = connection.protocol.close_rcvd
            session.leave(None if received is None else received.code)


def _response(reply: HttpReply) -> Response:
    """Convert a reply for the library."""
    headers = Headers(
        {
            "Date": email.utils.formatdate(usegmt=True),
            "Connection": "close",
            "Content-Length": str(len(reply.body)),
            "Content-Type": reply.content_type,
            **reply.headers,
        }
    )
    if reply.status == http.HTTPStatus.UPGRADE_REQUIRED:
        headers["Upgrade"] = "websocket"
    return Response(reply.status, http.HTTPStatus(reply.status).phrase, headers, reply.body)


def _header(request: Request, name: str) -> str | None:
    """Return a header's value; joining repeated ones makes them invalid, so none is accepted."""
    return ", ".join(request.headers.get_all(name)) or None


def _select_subprotocol(
    connection: ServerConnection, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    """Choose ``asyncgen.v1``; a client that offers no subprotocol gets it, too."""
    ours = next((one for one in offered if one == SUBPROTOCOL), None)
    if ours is None and offered:
        raise NegotiationError(f"only {SUBPROTOCOL} is spoken here")
    return ours


def _peer_address(address: object) -> str | None:
    """Return a peer's address; ``None`` on a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) and address else None


def _peer_name(address: object) -> str | None:
    """Return a peer's address and port as text."""
    if isinstance(address, tuple) and len(address) >= 2:
        return f"{address[0]}:{address[1]}"
    return None
