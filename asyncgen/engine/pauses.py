"""Hold the decode thread between two steps while other threads use the model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from asyncgen.runtime.beside import Changes

if TYPE_CHECKING:
    from collections.abc import Callable


class Pauses:
    """The threads that hold a pause, and the decode thread that waits until all have left.

    Several threads may hold it at the same time, and a thread may hold it several times.
    """

    def __init__(self) -> None:
        """Start without a pause."""
        self._changed: Changes[bool] = Changes()
        self._holders: dict[object, int] = {}
        """The thread of each pause."""
        self._is_paused = False
        self._is_over = False

    @property
    def is_held_here(self) -> bool:
        """True if the calling thread holds a pause."""
        return threading.get_ident() in list(self._holders.values())

    def acquire(self, pause: object, wake: Callable[[], object]) -> bool:
        """Wait until the decode thread has stopped between two steps.

        Args:
            pause: Names the pause, which is to be released in any case.
            wake: Makes the decode thread call :meth:`hold`.

        Returns:
            False if it ended before that.
        """
        self._holders[pause] = threading.get_ident()
        wake()
        self._changed.wait_for(lambda: self._is_paused or self._is_over)
        return self._is_paused

    def release(self, pause: object) -> None:
        """End a pause; a second call does nothing."""
        self._holders.pop(pause, None)
        self._changed.notify_all()

    def hold(self) -> bool:
        """Wait until nobody holds a pause; on the decode thread.

        Returns:
            False if nobody held one.
        """
        with self._changed.lock:
            if not self._holders:
                return False
            self._is_paused = True
        self._changed.notify_all()
        self._changed.wait_for(self._end_of_pause)
        return True

    def end(self) -> None:
        """Let nobody wait any more: the decode thread has ended, or must end."""
        self._is_over = True
        self._changed.notify_all()

    def _end_of_pause(self) -> bool:
        """End the pause of the decode thread once nobody holds one; return whether it has ended."""
        if not self._holders or self._is_over:
            self._is_paused = False
        return not self._is_paused
