"""A wire between client and server that a test cuts, holds or takes away."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.from_thread import BlockingPortal


class Relay:
    """Forwards bytes between its own port and another."""

    def __init__(self, portal: BlockingPortal, target: int) -> None:
        """Prepare; ``relaying`` starts it.

        Args:
            portal: The loop that it runs on.
            target: Port of the server on the loopback.
        """
        self._portal = portal
        self._target = target
        self._wires: set[asyncio.WriteTransport] = set()
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self.port = 0
        self.connections = 0

    def cut(self) -> None:
        """Reset every connection there is."""
        self._call(self._cut)

    def lead_to(self, target: int) -> None:
        """Lose the server: reset every connection, and lead new ones to another."""
        self._target = target
        self.cut()

    def hold(self) -> None:
        """Let no byte through any more, and tell nobody."""
        self._call(self._flows.clear)

    def go_on(self) -> None:
        """Let bytes through again."""
        self._call(self._flows.set)

    def close(self) -> None:
        """Refuse new connections, and reset those there are."""
        self._portal.call(self._close)

    def open(self) -> None:
        """Take connections."""
        self._portal.call(self._open)

    def _call(self, function: Callable[[], None]) -> None:
        async def run() -> None:
            function()

        self._portal.call(run)

    async def _open(self) -> None:
        self._flows.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._cut()

    def _cut(self) -> None:
        for wire in self._wires:
            wire.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        wires = {writer.transport, far_writer.transport}
        self._wires |= wires
        try:
            both = (self._pump(reader, far_writer), self._pump(far_reader, writer))
            await asyncio.gather(*both)
        finally:
            self._wires -= wires
            for wire in wires:
                wire.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()


@contextmanager
def relaying(target: int) -> Iterator[Relay]:
    """Forward to a port of the loopback until the block is left."""
    with start_blocking_portal("asyncio") as portal:

        async def make() -> Relay:
            return Relay(portal, target)

        relay = portal.call(make)
        relay.open()
        try:
            yield relay
        finally:
            relay.close()
