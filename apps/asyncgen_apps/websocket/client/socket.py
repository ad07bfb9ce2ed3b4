"""Open a WebSocket on asyncio or trio; no other file of the client has code for one of them.

Knows messages as text; nothing of the protocol.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio.lowlevel
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from ssl import SSLContext


MAX_MESSAGE_BYTES = 2**26
"""Longest message of a server, in bytes: merged text with many log-probabilities is long."""


class SocketError(Exception):
    """Raised if the socket cannot be opened or is closed; the cause is chained."""


class Socket:
    """An open WebSocket. One task may receive while another sends."""

    def __init__(self, connection: Any, *, on_trio: bool) -> None:
        """Wrap a connection of ``websockets``; use :func:`open_socket`."""
        self._connection = connection
        self._on_trio = on_trio

    async def send(self, text: str) -> None:
        """Send one message; waits while the server does not read.

        Raises:
            SocketError: It is closed.
        """
        try:
            await self._connection.send(text)
        except ConnectionClosed as error:
            raise SocketError("the connection is closed") from error

    async def receive(self) -> str | bytes:
        """Return the next message.

        Raises:
            SocketError: It is closed.
        """
        try:
            message: str | bytes = await self._connection.recv()
        except ConnectionClosed as error:
            raise SocketError("the connection is closed") from error
        return message

    async def close(self) -> None:
        """Close with 1000 and wait for the answer, at most ``close_seconds``; idempotent."""
        await (self._connection.aclose() if self._on_trio else self._connection.close())

    async def abort(self) -> None:
        """Drop the connection at once: a lost server would not answer a closing handshake."""
        if self._on_trio:
            import trio

            # Close the stream by force first: closing TLS properly waits for the other side.
            await trio.aclose_forcefully(self._connection.stream)
            await self._connection.close_stream()
        else:
            self._connection.transport.abort()


@asynccontextmanager
async def open_socket(
    url: str,
    *,
    subprotocol: str,
    headers: Mapping[str, str],
    tls: SSLContext | None,
    open_seconds: float,
    close_seconds: float,
) -> AsyncIterator[Socket]:
    """Connect to a server; the socket is closed on leaving.

    The keep-alive of the library is off: it does not notice a server that reads nothing, and the
    client has its own heartbeat. Pings of the server are answered.

    Args:
        url: ``ws://`` or ``wss://``.
        subprotocol: Subprotocol to offer.
        headers: HTTP headers of the opening request.
        tls: Trusted certificates for ``wss://``; ``None`` for those of the system.
        open_seconds: Longest time until the server has accepted.
        close_seconds: Longest time for the closing handshake.

    Raises:
        SocketError: There is no connection.
    """
    on_trio = not hasattr(anyio.lowlevel.current_token().native_token, "call_soon_threadsafe")
    options: dict[str, Any] = {
        "subprotocols": [Subprotocol(subprotocol)],
        "additional_headers": dict(headers),
        "compression": None,  # token frames are tiny
        "open_timeout": open_seconds,
        "close_timeout": close_seconds,
        "ping_interval": None,
        "max_size": MAX_MESSAGE_BYTES,
    }
    if tls is not None:
        options["ssl"] = tls
    if on_trio:
        from asyncgen_apps.websocket.client.trio import TrioConnection

        options["create_connection"] = TrioConnection
    async with AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(_connector(on_trio)(url, **options))
        except Exception as error:
            raise SocketError("the connection was not opened") from error
        yield Socket(connection, on_trio=on_trio)


def _connector(on_trio: bool) -> Any:
    """Return the library's ``connect`` for the running event loop."""
    if on_trio:
        from websockets.trio.client import connect as connect_on_trio

        return connect_on_trio
    from websockets.asyncio.client import connect as connect_on_asyncio

    return connect_on_asyncio
