"""Serve WebSocket connections of any listener: handshake, session, end.

The streams have one implementation of the protocol, with one set of limits. Its connections come
from a port of their own (`asyncgen_apps.websocket.server`), or from an HTTP server that hands a
socket over when a client asks for a WebSocket (:meth:`ConnectionServer.upgraded`).
"""

from __future__ import annotations

import asyncio
import email.utils
import http
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, NegotiationError
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from asyncgen_apps.serving.origins import host_fault
from asyncgen_apps.serving.read_budget import running_budget
from asyncgen_apps.websocket.chat_page import PAGE
from asyncgen_apps.websocket.connection import CLOSE_SECONDS, StreamConnection
from asyncgen_apps.websocket.connection_limit import ConnectionLimit
from asyncgen_apps.websocket.flush_queue import FlushQueue
from asyncgen_apps.websocket.http_routes import STREAM_PATHS, HttpRoutes, text_reply
from asyncgen_apps.websocket.messages import SUBPROTOCOL

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request
    from websockets.typing import Subprotocol

    from asyncgen_apps.websocket.http_routes import HttpReply
    from asyncgen_apps.websocket.service import StreamService


_MAX_QUEUE = 16
_SHUT_DOWN = 1001

_log = logging.getLogger("asyncgen.websocket.library")


class ConnectionServer:
    """Makes the connections of one listener, and serves each by a task.

    Attributes:
        handler_tasks: Tasks that serve; the library adds to them.
        open_seconds: Longest time of a handshake.
    """

    def __init__(
        self,
        service: StreamService,
        *,
        page: Path | None = PAGE,
        paths: Collection[str] = STREAM_PATHS,
    ) -> None:
        """Begin without connections.

        Args:
            service: Requests and limits of all connections.
            page: File for ``GET /``, or a folder of sources to join; ``None`` for no page.
            paths: Paths at which WebSockets connect.
        """
        self._service = service
        self._paths = paths
        self._plain = HttpRoutes(service, page=page)
        self._limit: ConnectionLimit[StreamConnection] = ConnectionLimit(
            service.settings.max_connections
        )
        self._flush_queue = FlushQueue()
        self._is_closed = False
        self.open_seconds = service.settings.open_seconds
        self.handler_tasks: set[asyncio.Task[None]] = set()

    def connect(self) -> StreamConnection:
        """Make a connection for a socket that was accepted; a protocol of asyncio."""
        return self._connect(StreamConnection)

    def upgraded(self, *, server_state: Any, **_: Any) -> StreamConnection:
        """Make a connection for a socket that uvicorn hands over: its ``ws=``.

        Args:
            server_state: Counts uvicorn's connections, which it closes when it ends.
        """
        return self._connect(_UpgradedConnection, server_state.connections)

    def _connect(self, kind: type[StreamConnection], *counted: Any) -> StreamConnection:
        settings = self._service.settings

        def select(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
            return _select_subprotocol(offered)

        protocol = ServerProtocol(
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            select_subprotocol=select,
            max_size=settings.max_message_bytes,
            logger=_log,
        )
        # No compression: frames are tiny, and it would cost 50 KiB a connection.
        return kind(
            *counted,
            self._limit,
            running_budget(),
            protocol,
            self,
            ping_interval=settings.heartbeat_seconds,
            ping_timeout=settings.heartbeat_seconds,
            close_timeout=CLOSE_SECONDS,
            max_queue=_MAX_QUEUE,
        )

    @property
    def connections(self) -> set[StreamConnection]:
        """Connections that are open, after their handshakes."""
        return {each for each in self._limit.connections if each.state is State.OPEN}

    def is_serving(self) -> bool:
        """Return whether handshakes are accepted; the library asks."""
        return not self._is_closed

    async def close(self) -> None:
        """Refuse handshakes, and return when all connections have ended."""
        self._is_closed = True
        self._limit.abort_unopened()
        if self.handler_tasks:
            await asyncio.wait(self.handler_tasks)

    async def handler(self, connection: StreamConnection) -> None:
        """Serve a connection from its handshake to its end; the library starts this as a task."""
        try:
            async with asyncio.timeout(self.open_seconds):
                await connection.handshake(self._process_request, server_header=None)
            if connection.state is State.OPEN:
                connection.start_keepalive()
                await self._serve(connection)
            else:
                async with asyncio.timeout(CLOSE_SECONDS):  # the client reads the reply
                    await connection.wait_closed()
        except (TimeoutError, ConnectionClosed):
            pass
        except Exception:
            _log.exception("a connection has failed")
        finally:
            connection.transport.abort()
            task = asyncio.current_task()
            assert task is not None
            self.handler_tasks.discard(task)

    async def _process_request(
        self, connection: ServerConnection, request: Request
    ) -> Response | None:
        """Answer plain HTTP requests; the library continues with handshakes."""
        fault = host_fault(request.headers.get_all("Host"), request.protocol.removeprefix("HTTP/"))
        if fault is not None:
            return _response(text_reply(fault, 400))
        host = _header(request, "Host")
        refused = self._plain.refusal(request.path, host)
        is_handshake = _header(request, "Upgrade") is not None
        if refused is not None:
            return _response(refused if not is_handshake else replace(refused, status=403))
        if is_handshake and request.path.partition("?")[0] in self._paths:
            return None
        if request.method not in ("GET", "HEAD"):
            return None  # the library answers with 405
        path = request.path if not is_handshake else "/nothing"
        return _response(await self._plain.reply(path, _header(request, "Authorization")))

    async def _serve(self, connection: StreamConnection) -> None:
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
            async with connection:
                await session.read(connection.receive, wait_writable)
        except ConnectionClosed:
            pass
        finally:
            received = connection.protocol.close_rcvd
            session.leave(None if received is None else received.code)


class _UpgradedConnection(StreamConnection):
    """A connection whose socket uvicorn has accepted, and counts."""

    def __init__(self, counted: set[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counted = counted
        self._closing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._counted.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._counted.discard(self)

    def shutdown(self) -> None:
        """Close the connection, since uvicorn ends."""
        if self.state is State.OPEN:
            self._closing = self.loop.create_task(self.close(_SHUT_DOWN))
        else:
            self.abort()


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


def _select_subprotocol(offered: Sequence[Subprotocol]) -> Subprotocol | None:
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
