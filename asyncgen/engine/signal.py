"""A one-shot signal from a thread that any number of event loops can await."""

from __future__ import annotations

import threading

import anyio

from streamers import LoopBell

__all__ = ["Signal"]


class Signal:
    """Set once from any thread; awaited on asyncio and trio, from several loops at once."""

    def __init__(self) -> None:
        """Start unset."""
        self._lock = threading.Lock()
        self._waiters: list[tuple[LoopBell, anyio.Event]] = []
        self._set = False

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._set

    def set(self) -> None:
        """Wake everybody who waits; a second call does nothing."""
        with self._lock:
            self._set = True
            waiters, self._waiters = self._waiters, []
        for bell, event in waiters:
            bell.ring(event.set)

    async def wait(self) -> None:
        """Return once it is set; can be cancelled."""
        entry = (LoopBell.current(), anyio.Event())
        with self._lock:
            if self._set:
                return
            self._waiters.append(entry)
        try:
            await entry[1].wait()
        finally:
            with self._lock:
                if entry in self._waiters:
                    self._waiters.remove(entry)
