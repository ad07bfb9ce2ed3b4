"""Serve ``asyncgen.v1`` on its own port, with the ``websockets`` library on asyncio.

TLS and rate limits are the task of a proxy in front.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from asyncgen_apps.serving.accepting import Accepting
from asyncgen_apps.serving.origins import is_address, is_loopback
from asyncgen_apps.serving.sockets import listen
from asyncgen_apps.websocket.chat_page import PAGE
from asyncgen_apps.websocket.connection_server import ConnectionServer
from asyncgen_apps.websocket.service import StreamService
from asyncgen_apps.websocket.settings import StreamSettings

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator
    from pathlib import Path

    from asyncgen_apps.engine import Engine


_BACKLOG = 1024


class StreamServer:
    """A server that runs.

    Attributes:
        service: Requests and limits of all connections.
    """

    def __init__(
        self,
        service: StreamService,
        server: asyncio.Server,
        connections: ConnectionServer,
        host: str,
    ) -> None:
        """Keep the started server; :func:`serve_websocket` does it."""
        self.service = service
        self._server = server
        self._connections = connections
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
        page: File for ``GET /``, or a folder of sources to join; ``None`` for no page.
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
    async with (
        StreamService(llm, settings) as service,
        listening(service, host, port, page=page, sock=sock) as server,
    ):
        yield server


@asynccontextmanager
async def listening(
    service: StreamService,
    host: str,
    port: int = 0,
    *,
    page: Path | None = PAGE,
    sock: socket.socket | None = None,
) -> AsyncIterator[StreamServer]:
    """Serve the requests of a service on a port for as long as the block runs.

    Args:
        service: An entered service; other ports may serve it as well, and each resumes the requests
            of the others. It is drained at the end.
        host: Address to listen on.
        port: Port; 0 chooses one.
        page: File for ``GET /``, or a folder of sources to join; ``None`` for no page.
        sock: Listening socket, in place of ``host`` and ``port``.

    Yields:
        The listening server.

    Raises:
        OSError: The port is in use, or the address is not of this machine.
    """
    connections = ConnectionServer(service, page=page)
    if sock is None and is_address(host):
        sock = listen(host, port, _BACKLOG)
    loop = asyncio.get_running_loop()
    if sock is None:  # asyncio resolves names
        server = await loop.create_server(connections.connect, host, port, backlog=_BACKLOG)
    else:
        make = Accepting(sock, connections.connect)
        server = await loop.create_server(make, sock=sock, backlog=_BACKLOG)
    try:
        yield StreamServer(service, server, connections, host)
    finally:
        await service.drain(0)
        server.close()
        await connections.close()
        await server.wait_closed()
