"""The server: ``asyncgen.v1`` on a port of its own, on the ``websockets`` library and asyncio.

TLS, and a rate for each client, belong to the proxy in front.
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
from asyncgen_apps.websocket.connection import Lobby, StreamConnection, Turns
from asyncgen_apps.websocket.http_routes import PAGE, STREAM_PATHS, PlainReplies
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
    from asyncgen_apps.websocket.http_routes import Reply
    from asyncgen_apps.websocket.session import Session


CLOSE_SECONDS = 5.0
"""How long a closing handshake may take."""

_TURN = 16
"""Messages of one client before the others get a turn."""

_MAX_QUEUE = 16
_BACKLOG = 1024

_log = logging.getLogger("asyncgen.websocket.library")


class StreamServer:
    """A server that runs.

    Attributes:
        service: What all connections share.
    """

    def __init__(self, service: StreamService, server: Server, host: str) -> None:
        """Keep what was started; :func:`serve_websocket` does it."""
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
        """Take nothing new, let streams finish, close with 1001; then leave the block.

        Args:
            seconds: How long streams may go on; by default what the settings say.
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

    Leaving the block ends what runs, and tells the clients; :meth:`StreamServer.drain` before lets
    it finish. Needs asyncio.

    Args:
        llm: An open engine; closing it is up to the caller.
        host: Address to listen on.
        port: Port; 0 chooses one, see :attr:`StreamServer.port`.
        settings: Limits, tokens, times.
        allow_anonymous: Serve without a token also where others than this machine reach it.
        page: File that ``GET /`` gives; ``None`` gives none.
        sock: A socket that listens already, instead of ``host`` and ``port``.

    Yields:
        The server, which listens.

    Raises:
        ValueError: No token, and the address is not of this machine alone.
        OSError: The port is taken, or the address is not of this machine.

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
        lobby = Lobby(settings.max_connections)
        door = _Front(service, PlainReplies(service, page=page))
        options = _where(host, port, sock)
        settings = service.settings
        server = await serve(
            door.handle,  # type: ignore[arg-type]  # create_connection says which class it is
            **options,
            backlog=_BACKLOG,
            compression=None,  # frames are tiny, and it would cost 50 KiB a connection
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            select_subprotocol=_choose,
            process_request=door.look,
            server_header=None,
            open_timeout=settings.open_seconds,
            ping_interval=settings.heartbeat_seconds,
            ping_timeout=settings.heartbeat_seconds,
            close_timeout=CLOSE_SECONDS,
            max_size=settings.max_message_bytes,
            max_queue=_MAX_QUEUE,
            logger=_log,
            create_connection=partial(StreamConnection, lobby),  # type: ignore[arg-type]
        )
        try:
            yield StreamServer(service, server, host)
        finally:
            await service.drain(0)
            server.close()
            await server.wait_closed()


def _where(host: str, port: int, sock: socket.socket | None) -> dict[str, Any]:
    """Return the arguments that say where to listen; asyncio looks names up."""
    if sock is None and is_address(host):
        sock = listen(host, port, _BACKLOG)
    return {"sock": sock} if sock is not None else {"host": host, "port": port}


class _Front:
    """Handler of new connections."""

    def __init__(self, service: StreamService, plain: PlainReplies) -> None:
        self._service = service
        self._plain = plain
        self._turns = Turns()

    async def look(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer what is no handshake; let the library do the others."""
        host = _one(request, "Host")
        refused = self._plain.refusal(request.path, host)
        is_handshake = _one(request, "Upgrade") is not None
        if refused is not None:
            return _response(refused if not is_handshake else replace(refused, status=403))
        if is_handshake and request.path.partition("?")[0] in STREAM_PATHS:
            return None
        if request.method not in ("GET", "HEAD"):
            return None  # the library says 405
        path = request.path if not is_handshake else "/nothing"
        return _response(await self._plain.reply(path, _one(request, "Authorization")))

    async def handle(self, connection: StreamConnection) -> None:
        """Read one connection until it is gone."""
        service = self._service
        assert connection.request is not None
        session = service.open(
            authorization=_one(connection.request, "Authorization"),
            origin=_one(connection.request, "Origin"),
            host=_one(connection.request, "Host"),
            peer=_name(connection.remote_address),
            remote=_remote(connection.remote_address),
            forwarded_for=_one(connection.request, "X-Forwarded-For"),
        )
        connection.attach(session, service.settings.send_seconds, self._turns)
        try:
            await self._read(connection, session)
        except ConnectionClosed:
            pass
        finally:
            received = connection.protocol.close_rcvd
            session.leave(None if received is None else received.code)

    async def _read(self, connection: StreamConnection, session: Session) -> None:
        """Hand frames in; it ends with the connection, which raises."""
        if not session.is_authenticated:
            try:
                async with asyncio.timeout(self._service.settings.open_seconds):
                    session.receive(await connection.recv())
            except TimeoutError:
                session.too_late()
        count = 0
        while True:
            await session.receive_large(await connection.recv())
            count += 1
            if count % _TURN == 0:
                await asyncio.sleep(0)  # frames that are there already do not wait
            # One that is closing sends nothing more: what is left is read, to notice its end.
            while session.is_congested and connection.state is State.OPEN:
                await connection.wait_writable()
                await asyncio.sleep(0)


def _response(reply: Reply) -> Response:
    """Lay a reply out for the library."""
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


def _one(request: Request, name: str) -> str | None:
    """A header's value. The values of a repeated header are joined, so that none is accepted."""
    return ", ".join(request.headers.get_all(name)) or None


def _choose(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Take ours; a client that names none is taken to mean it."""
    ours = next((one for one in offered if one == SUBPROTOCOL), None)
    if ours is None and offered:
        raise NegotiationError(f"only {SUBPROTOCOL} is spoken here")
    return ours


def _remote(address: object) -> str | None:
    """A peer's address; ``None`` on a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) and address else None


def _name(address: object) -> str | None:
    """A peer's address on one line."""
    if isinstance(address, tuple) and len(address) >= 2:
        return f"{address[0]}:{address[1]}"
    return None
