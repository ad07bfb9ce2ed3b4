"""From a computing thread to a reading thread: what `Mailbox` is to a task of an event loop."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SLICE = 0.5
"""Seconds. A signal that comes in the very moment before a thread sleeps does not wake it."""


def get_interruptibly(source: queue.SimpleQueue[T], seconds: float | None = None) -> T:
    """Take the next item of a queue; Ctrl-C ends it, soon even if it came at a bad moment.

    Args:
        source: The queue.
        seconds: Most to wait; None for no limit.

    Raises:
        queue.Empty: Nothing came in time.
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

    Nothing blocks the sender and nothing is dropped while the reader is there. A `SimpleQueue`
    holds the items: it may be used in signal handlers and finalizers, so `abandon` is safe there.

    Attributes:
        closed: Whether the reader has left.
    """

    def __init__(
        self, *, pace: float = 0.0, presses: Callable[[T], bool] = lambda item: False
    ) -> None:
        """Args:
        pace: seconds, from 0. A reader that was woken twice within this time then comes back by
            itself when it has passed, as in `Mailbox`.
        presses: whether it comes for this item at once all the same.
        """
        self.closed = False
        self._pace = pace
        self._presses = presses
        self._woken_at = float("-inf")
        self._hurried = self._dropped = False
        self._first: list[T] = []  # what a wait took out of the queue
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._pressed: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes a hurried reader

    def __len__(self) -> int:
        """Number of unread items."""
        return len(self._first) + self._queue.qsize()

    def put_nowait(self, item: T) -> bool:
        """Append an item from any thread; never waits.

        Returns:
            False if it will never be read.
        """
        if not self.closed:
            self._queue.put(item)
            if self._presses(item):
                self._pressed.put(None)
        return not self.closed

    def wait(self, seconds: float | None = None) -> None:
        """Block until something is there to drain, or the mailbox is closed; Ctrl-C ends it.

        Args:
            seconds: Most to wait, above 0; None for no limit.
        """
        if len(self) or self.closed:
            return
        if self._hurried:
            self._doze(self._woken_at + self._pace - time.monotonic())
        try:
            item = get_interruptibly(self._queue, seconds)
        except queue.Empty:
            return
        if item is not None:
            self._first.append(item)
        now = time.monotonic()
        self._hurried = now - self._woken_at < self._pace
        self._woken_at = now

    def _doze(self, seconds: float) -> None:
        """Let so long pass, or until something presses."""
        try:
            get_interruptibly(self._pressed, seconds)
        except queue.Empty:
            return

    def drain(self) -> list[T]:
        """Take everything unread, oldest first; an empty list if there is nothing."""
        items, self._first = self._first, []
        try:
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    items.append(item)
        except queue.Empty:
            return [] if self._dropped else items

    def close(self) -> None:
        """Leave: unread items are dropped, later ones refused, a waiting thread is woken."""
        self.closed = self._dropped = True
        self._queue.put(None)
        self._pressed.put(None)

    def abandon(self) -> None:
        """Refuse later items, without waking anybody: what a finalizer may do."""
        self.closed = True
