"""Pass items from any thread, and from finalizers, into the event loop of the client.

Takes no lock: a finalizer may run in any thread, also while other code of that thread holds a lock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


class Outbox(Generic[T]):
    """Queue from any thread into the event loop in which it was made."""

    def __init__(self, handle: Callable[[T], object]) -> None:
        """Bind it to the running loop.

        Args:
            handle: Called in the loop for each item; it must be quick and must not raise.

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
        """Add an item, from any thread; never waits.

        Returns:
            False if the loop has ended and the item is lost.
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
