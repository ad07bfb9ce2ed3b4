"""A TCP proxy that cuts: after so many bytes, when it is told to, or never."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType


class CuttingProxy:
    """Passes bytes on to a server, and drops connections; a context manager, in a thread.

    Attributes:
        url: Where clients connect to.
        connections: How many were passed on.
        cuts: How many of them were cut.
        refuse: Drop new connections at once.
    """

    def __init__(self, port: int, budget: Callable[[int], int | None] = lambda _: None) -> None:
        """Args:
        port: Of the server.
        budget: Bytes of the server that a connection may carry, by its number from 0; ``None``
            never cuts it.
        """
        self._port = port
        self._budget = budget
        self._open: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.url = ""
        self.connections = 0
        self.cuts = 0
        self.refuse = False

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def cut(self) -> None:
        """Drop all connections without a word, from any thread."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def _cut_all(self) -> None:
        self.cuts += bool(self._open)
        _reset(self._open)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        self._ready.set()
        await self._stop.wait()
        server.close()
        _reset(self._open)
        while self._handlers:
            await asyncio.wait(self._handlers)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        try:
            if self.refuse:
                return
            budget = self._budget(self.connections)
            self.connections += 1
            back, forth = await asyncio.open_connection("127.0.0.1", self._port)
            ends.append(forth)
            self._open.update(ends)
            copies = [
                asyncio.ensure_future(self._copy(reader, forth, None)),
                asyncio.ensure_future(self._copy(back, writer, budget)),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for copy in copies:
                copy.cancel()
            await asyncio.wait(copies)
        except OSError:
            pass
        finally:
            _reset(ends)
            self._open.difference_update(ends)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, budget: int | None
    ) -> None:
        """Copy until either side ends or the budget is spent."""
        try:
            while data := await source.read(4096):
                if budget is not None and len(data) >= budget:
                    sink.write(data[:budget])
                    self.cuts += 1
                    return
                sink.write(data)
                await sink.drain()
                budget = None if budget is None else budget - len(data)
        except OSError:
            pass


def _reset(ends: Iterable[asyncio.StreamWriter]) -> None:
    """Have connections reset: what was written is sent, and no goodbye."""
    for end in ends:
        raw = end.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.transport.abort()
