"""Let a reader come back at most once an interval, and at once at the end.

Between its turns nothing wakes it: what arrives waits, and costs its event loop nothing.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


LOOK_SECONDS = 0.05
"""How often a reader that waits for a late turn looks whether the end has come meanwhile."""


class Pace:
    """The turns of one reader."""

    def __init__(self, interval: float, pause: Callable[[float], Awaitable[None]]) -> None:
        """Begin; the first turn is at once.

        Args:
            interval: Least seconds between two turns, from 0.
            pause: Waits so many seconds.
        """
        self._pause = pause
        self._interval = interval
        self._took_at = float("-inf")

    def took(self) -> None:
        """A turn was taken now: the next one is an interval later."""
        self._took_at = monotonic()

    async def turn(self, is_over: Callable[[], bool]) -> None:
        """Return when the next turn may be taken.

        It is no checkpoint where that is now.

        Args:
            is_over: Whether there is nothing more to wait for; asked now and then.
        """
        while not is_over():
            rest = self._took_at + self._interval - monotonic()
            if rest <= 0:
                return
            await self._pause(min(rest, LOOK_SECONDS))
