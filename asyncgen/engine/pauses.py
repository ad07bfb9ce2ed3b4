"""Hold the decode thread between two steps while other threads use the model."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pauses:
    """The threads that hold a pause, and the decode thread that waits until all have left.

    Several threads may hold it at the same time, and a thread may hold it several times.
    """

    def __init__(self) -> None:
        """Start without a pause."""
        self._changed = threading.Condition()
        self._holders: Counter[int] = Counter()
        self._is_paused = False
        self._is_over = False

    @property
    def is_held_here(self) -> bool:
        """True if the calling thread holds a pause."""
        return threading.get_ident() in self._holders

    def acquire(self, wake: Callable[[], object]) -> bool:
        """Wait until the decode thread has stopped between two steps.

        Args:
            wake: Makes the decode thread call :meth:`hold`.

        Returns:
            False if it ended before that; then there is nothing to release.
        """
        with self._changed:
            self._holders[threading.get_ident()] += 1
            try:
                wake()
                self._changed.wait_for(lambda: self._is_paused or self._is_over)
            except BaseException:
                self._leave()
                raise
            if not self._is_paused:
                self._leave()
            return self._is_paused

    def release(self) -> None:
        """End a pause of the calling thread."""
        with self._changed:
            self._leave()

    def hold(self) -> bool:
        """Wait until nobody holds a pause; on the decode thread.

        Returns:
            False if nobody held one.
        """
        with self._changed:
            if not self._holders:
                return False
            self._is_paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._holders or self._is_over)
            self._is_paused = False
        return True

    def end(self) -> None:
        """Let nobody wait any more: the decode thread has ended, or must end."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _leave(self) -> None:
        here = threading.get_ident()
        self._holders[here] -= 1
        if not self._holders[here]:
            del self._holders[here]
        self._changed.notify_all()
