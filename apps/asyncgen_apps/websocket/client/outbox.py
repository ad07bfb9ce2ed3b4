"""From any thread, and from finalizers, into the event loop of the client.

Takes no lock: a finalizer runs in whatever thread the garbage collector happens to be in, also
inside somebody else's lock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Outbox(Generic[T]):
    """Items posted from anywhere, handed over one by one in the loop that it was made in."""

    def __init__(self, handle: Callable[[T], object]) -> None:
        """Bind it to the running loop.

        Args:
            handle: Called in the loop for each item, soon; it must be quick and must not raise.

        Raises:
            anyio.NoEventLoopError: No loop runs in this thread.
        """
        loop: Any = anyio.lowlevel.current_token().native_token
        self._handle = handle
        # asyncio and uvloop loops have the first method, trio tokens the second.
        self._schedule: Callable[[Callable[[], None]], Any] = (
            getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        )
        self._items: deque[T] = deque()

    def post(self, item: T) -> bool:
        """Hand an item over, from any thread; never waits.

        Returns:
            False if the loop has ended: nobody will see it.
        """
        self._items.append(item)
        try:
            self._schedule(self._hand_over)
        except RuntimeError:  # asyncio: "Event loop is closed"; trio: RunFinishedError
            return False
        return True

    def _hand_over(self) -> None:
        while self._items:
            self._handle(self._items.popleft())
