"""Limit the sockets of a server of WebSockets, also those that have not spoken yet."""

from __future__ import annotations

from collections import Counter
from typing import Generic, Protocol, TypeVar

from websockets.protocol import State

from asyncgen_apps.serving.sockets import RESERVE


class LimitedSocket(Protocol):
    """A connection as the limit sees it.

    Attributes:
        peer: Address of the other end.
    """

    peer: str

    @property
    def state(self) -> State:
        """State of the protocol."""

    def abort(self) -> None:
        """End the connection at once."""


S = TypeVar("S", bound=LimitedSocket)


class ConnectionLimit(Generic[S]):
    """Limits the sockets of a server, also those without a finished handshake.

    Some sockets beyond the limit stay open, to be told that the server is full and to ask for its
    health. Beyond those, a socket without a place is closed: the oldest of the address that has
    most of them, so that nobody else is cut off.

    Attributes:
        connections: Sockets that are open.
    """

    def __init__(self, most: int) -> None:
        """Begin without sockets.

        Args:
            most: Connections that may stay open.
        """
        self._most = most + RESERVE
        self.connections: set[S] = set()
        self._without: dict[S, str] = {}
        """Addresses of those without a place: they wait for one, or were refused."""

    def add(self, connection: S) -> None:
        """Count an opened socket; close one if there are too many."""
        self.connections.add(connection)
        self._without[connection] = connection.peer
        if len(self.connections) > self._most:
            counts = Counter(self._without.values())
            most = max(counts.values())
            oldest = next(each for each, peer in self._without.items() if counts[peer] == most)
            del self._without[oldest]
            oldest.abort()

    def note_place(self, connection: S) -> None:
        """Note that a socket has a session with a place of its client."""
        self._without.pop(connection, None)

    def abort_unopened(self) -> None:
        """Close the sockets without a finished handshake."""
        for connection in [*self.connections]:
            if connection.state is not State.OPEN:
                connection.abort()

    def remove(self, connection: S) -> None:
        """Forget a closed socket."""
        self.connections.discard(connection)
        self._without.pop(connection, None)
