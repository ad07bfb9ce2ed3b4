"""A one-shot signal from a thread, for event loops that await it and threads that wait for it."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import anyio

from streamers import LoopBell

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Signal"]


class Signal:
    """Set once from any thread; awaited on asyncio and trio, from several loops at once."""

    def __init__(self) -> None:
        """Start unset."""
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []
        self._set = False

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._set

    def set(self) -> None:
        """Wake everybody who waits; a second call does nothing."""
        with self._lock:
            self._set = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function once it is set, on the thread that sets it; at once if it is set.

        Args:
            function: Must not wait and must not raise.
        """
        with self._lock:
            if not self._set:
                self._calls.append(function)
                return
        function()

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set.

        Args:
            timeout: Most seconds to wait; ``None`` for no limit.

        Returns:
            Whether it is set.
        """
        event = threading.Event()
        self.call(event.set)
        try:
            return event.wait(timeout)
        finally:
            self._drop(event.set)

    async def wait(self) -> None:
        """Return once it is set; can be cancelled."""
        event = anyio.Event()
        ring = partial(LoopBell.current().ring, event.set)
        with self._lock:
            if self._set:
                return
            self._calls.append(ring)
        try:
            await event.wait()
        finally:
            self._drop(ring)

    def _drop(self, function: Callable[[], object]) -> None:
        with self._lock:
            if function in self._calls:
                self._calls.remove(function)
