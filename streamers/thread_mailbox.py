"""Carry items from a computing thread to a reading thread, as `Mailbox` does to an event loop."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SLICE = 0.5
"""Most seconds of one wait: a signal just before a thread sleeps does not wake it."""


def get_interruptibly(source: queue.SimpleQueue[T], seconds: float | None = None) -> T:
    """Take the next item of a queue; Ctrl-C ends the wait within half a second.

    Args:
        source: The queue.
        seconds: Most to wait; None for no limit.

    Raises:
        queue.Empty: No item came in time.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = _SLICE if deadline is None else min(deadline - time.monotonic(), _SLICE)
        try:
            return source.get(True, max(left, 0.0))
        except queue.Empty:
            if deadline is not None and time.monotonic() >= deadline:
                raise


class ThreadMailbox(Generic[T]):
    """Items from any thread for one reading thread.

    Nothing blocks the sender and nothing is dropped while the reader is there. There is no lock, so
    that signal handlers and finalizers may use it.

    Attributes:
        closed: True if the reader has left.
    """

    def __init__(
        self, *, pace: float = 0.0, is_urgent: Callable[[T], bool] = lambda item: False
    ) -> None:
        """Args:
        pace: Seconds, from 0. A reader that was woken twice within this time then waits until it
            has passed, as in `Mailbox`.
        is_urgent: Tells whether an item wakes the reader at once. It must be quick and must not
            raise.
        """
        self.closed = False
        self._pace = pace
        self._is_urgent = is_urgent
        self._woken_at = float("-inf")
        self._is_paced = self._dropped = False
        self._items: list[T] = []
        self._num_drains = 0
        # Bell of the reader that waits now, and True if only an urgent item rings it.
        self._bell: tuple[queue.SimpleQueue[None], bool] | None = None

    def __len__(self) -> int:
        """Number of unread items."""
        return len(self._items)

    def put_nowait(self, item: T) -> bool:
        """Append an item from any thread; never waits.

        Returns:
            False if it will never be read.
        """
        if self.closed:
            return False
        self._items.append(item)
        bell = self._bell
        if bell is not None and (not bell[1] or self._is_urgent(item)):
            bell[0].put(None)
        return not self.closed

    def wait(self, seconds: float | None = None) -> None:
        """Block until there is an item, or the mailbox is closed; Ctrl-C ends the wait.

        A drain by another thread ends it, too.

        Args:
            seconds: Most to wait, above 0; None for no limit.
        """
        if len(self) or self.closed:
            return
        started = time.monotonic()
        if self._is_paced:
            rest = max(0.0, self._woken_at + self._pace - started)
            is_rung = self._wait_for_wake(
                rest if seconds is None else min(rest, seconds), urgent_only=True
            )
            if is_rung or len(self) or self.closed:
                self._woken_at = time.monotonic()
                return
        if seconds is not None:
            seconds = max(0.0, started + seconds - time.monotonic())
        if self._wait_for_wake(seconds, urgent_only=False):
            now = time.monotonic()
            self._is_paced = now - self._woken_at < self._pace
            self._woken_at = now

    def _wait_for_wake(self, seconds: float | None, *, urgent_only: bool) -> bool:
        """Wait to be woken, or only for an urgent item; return whether it was."""
        end = None if seconds is None else time.monotonic() + seconds
        ring: queue.SimpleQueue[None] = queue.SimpleQueue()
        drains = self._num_drains
        self._bell = ring, urgent_only
        try:
            # A sender just before had no bell to ring, and one whose item was drained already may
            # ring only now.
            while not (len(self) or self.closed or self._num_drains != drains):
                get_interruptibly(ring, None if end is None else end - time.monotonic())
        except queue.Empty:
            return False
        finally:
            self._bell = None
        return True

    def drain(self) -> list[T]:
        """Take all unread items, oldest first."""
        self._num_drains += 1
        items = self._items
        count = len(items)
        # No call comes between these two, so no Ctrl-C either: nothing is lost.
        drained = items[:count]
        del items[:count]
        return [] if self._dropped else drained

    def close(self) -> None:
        """Leave: unread items are dropped, later ones refused, a waiting thread is woken."""
        self.closed = self._dropped = True
        bell = self._bell
        if bell is not None:
            bell[0].put(None)

    def abandon(self) -> None:
        """Refuse later items, without waking anybody, as a finalizer must."""
        self.closed = True
