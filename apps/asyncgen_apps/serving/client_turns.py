"""Run functions on few worker threads, or one a turn of the loop, for one client after the other.

Of each client one call waits for its turn; its others wait behind it. So a client with hundreds of
them takes turns with all that have one. Knows names; not what runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ClientDoors:
    """A lock for each client, kept as long as somebody uses it."""

    def __init__(self) -> None:
        """Begin without clients."""
        self._doors: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._doors)

    def of(self, client: str) -> anyio.Lock:
        """Return the lock of a client."""
        door = self._doors.get(client)
        if door is None:
            door = self._doors[client] = anyio.Lock(fast_acquire=True)
        return door


class TurnsOnLoop:
    """Calls of milliseconds on an event loop, which does other things between any two of them."""

    def __init__(self) -> None:
        """Run nothing yet; one for all calls of a loop."""
        self._doors = ClientDoors()
        self._is_taken = anyio.Lock(fast_acquire=True)

    async def run(self, client: str, function: Callable[..., T], *args: object) -> T:
        """Call a function when it is the client's turn.

        Args:
            client: Name of the client.
            function: What to call.
            *args: Its arguments.

        Raises:
            Exception: What the function raised.
        """
        async with self._doors.of(client), self._is_taken:
            try:
                return function(*args)
            finally:
                await anyio.lowlevel.checkpoint()


class ClientTurns:
    """A limit of worker threads for which clients wait in turn; for one event loop."""

    def __init__(self, at_once: int) -> None:
        """Run nothing yet.

        Args:
            at_once: Most threads, and one of them at most for each client.
        """
        self._limiter = anyio.CapacityLimiter(at_once)
        self._doors = ClientDoors()

    async def run(self, client: str, function: Callable[..., T], *args: object) -> T:
        """Call a function on a worker thread.

        A caller that is cancelled while its call runs waits for the end: left to themselves, calls
        of clients that come and go would be more than there are threads for. What takes long asks
        `anyio.from_thread.check_cancelled` now and then.

        Args:
            client: Name of the client.
            function: What to call.
            *args: Its arguments.

        Raises:
            Exception: What the function raised.
        """
        async with self._doors.of(client):
            return await anyio.to_thread.run_sync(function, *args, limiter=self._limiter)
