"""Accept all connections that wait, not one in each turn of the event loop.

uvloop accepts one connection a turn (libuv from 1.46). Where turns have work, somebody who opens
hundreds of connections at once would have everybody behind them wait for seconds.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

AT_ONCE = 128
"""Connections that are accepted in one turn. Turns may be long, and the last one waits for all."""


class Accepting:
    """Factory of connections for ``create_server``, which then accepts those that wait as well."""

    def __init__(self, listener: socket.socket, make: Callable[..., asyncio.Protocol]) -> None:
        """Accept nothing yet.

        Args:
            listener: Listening socket of the server.
            make: Makes the protocol of a connection.
        """
        self._listener = listener
        self._make = make
        self._is_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, *args: Any, **options: Any) -> asyncio.Protocol:
        """Make the protocol of a connection that the server has accepted; others may wait."""
        self._schedule(partial(self._make, *args, **options))
        return self._make(*args, **options)

    def _schedule(self, make: Callable[[], asyncio.Protocol]) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._accept, make)

    def _accept(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Accept what waits."""
        self._is_scheduled = False
        for _ in range(AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # none waits, or the server is closed
                return
            task = asyncio.get_running_loop().create_task(_connect(make, accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._schedule(make)


async def _connect(make: Callable[[], asyncio.Protocol], accepted: socket.socket) -> None:
    accepted.setblocking(False)
    with suppress(OSError):  # the client has left
        await asyncio.get_running_loop().connect_accepted_socket(make, accepted)
