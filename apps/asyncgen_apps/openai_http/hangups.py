"""Notice clients that leave while their connections are not read.

A loop sees that a client is gone only when it has read all that the client sent. The kernel knows
at once: it tells a second selector, which the loop watches as it watches a socket. Knows sockets;
nothing of what they carry. On Linux; elsewhere such a client is noticed when it is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_AT_ONCE = 64
"""Clients that have left and are handled in one turn of the loop."""


class Watched(Protocol):
    """Connection that is not read."""

    transport: asyncio.Transport


C = TypeVar("C", bound=Watched)


class HangupWatch(Generic[C]):
    """Watches connections, and calls a function for each whose client has left."""

    def __init__(self, left: Callable[[C], None]) -> None:
        """Begin without connections.

        Args:
            left: Called once with a connection whose client closed it, or its half of it.
        """
        self._left = left
        self._files: dict[C, int] = {}
        self._owners: dict[int, C] = {}
        self._poll: select.epoll | None = None

    def add(self, connection: C) -> None:
        """Watch a connection from now on."""
        if connection in self._files or not hasattr(select, "epoll"):
            return
        if self._poll is None:
            self._poll = select.epoll()
            asyncio.get_running_loop().add_reader(self._poll.fileno(), self._look)
        file = connection.transport.get_extra_info("socket").fileno()
        self._files[connection], self._owners[file] = file, connection
        try:
            self._poll.register(file, select.EPOLLRDHUP)
        except FileExistsError:
            self._poll.modify(file, select.EPOLLRDHUP)

    def discard(self, connection: C) -> None:
        """Stop watching a connection."""
        file = self._files.pop(connection, None)
        if file is None or self._poll is None:
            return
        if self._owners[file] is connection:  # else it is closed, and its number was given again
            del self._owners[file]
            with contextlib.suppress(OSError):
                self._poll.unregister(file)
        if not self._files:
            asyncio.get_running_loop().remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def _look(self) -> None:
        assert self._poll is not None
        for file, _ in self._poll.poll(0, _MOST_AT_ONCE):
            if (connection := self._owners.get(file)) is not None:
                self.discard(connection)
                self._left(connection)
