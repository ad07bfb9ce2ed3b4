"""Work that an exception of a signal handler cannot tear: on a thread that gets no signals.

The interpreter raises Ctrl-C in the main thread, between any two instructions of Python code, also
in that of `threading`: an interrupted `Thread.start` leaves a thread that never begins, and an
interrupted `Condition` a lock that nobody releases. Code of C is not torn.
"""

from __future__ import annotations

import _thread
import queue
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SLICE = 0.5
"""Most seconds of one wait: a signal just before a thread sleeps does not wake it."""


def call_beside(function: Callable[[], object]) -> None:
    """Call a function where no signal is handled, and wait for it.

    Ctrl-C ends the wait, not the function.

    Args:
        function: Called once, here or on a thread of its own, which `threading` does not know.

    Raises:
        RuntimeError: The system gives no thread.
        BaseException: What the function raised.
    """
    if threading.current_thread() is not threading.main_thread():
        function()
        return
    told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            function()
        except BaseException as error:
            told.put(error)
        else:
            told.put(None)

    _thread.start_new_thread(work, ())
    error = told.get()
    if error is not None:
        try:
            raise error
        finally:
            del error  # which holds this frame


class Changes(Generic[T]):
    """Lets threads wait for a change of what a lock guards, as `threading.Condition` does.

    Attributes:
        lock: Guards the state; reentrant. It is entered itself, as its code is of C.
    """

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self.lock = threading.RLock()
        self._bells: set[queue.SimpleQueue[None]] = set()

    def notify_all(self) -> None:
        """Let all who wait look again."""
        for bell in list(self._bells):
            bell.put(None)

    def wait_for(self, find: Callable[[], T], seconds: float | None = None) -> T:
        """Wait until a function finds something; it is called under the lock.

        Args:
            find: Returns what is true once it was found.
            seconds: Most to wait; ``None`` for no limit.

        Returns:
            What was found, or what was last returned in place of it.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        try:
            self._bells.add(bell)
            while True:
                with self.lock:
                    found = find()
                left = _SLICE if deadline is None else min(deadline - time.monotonic(), _SLICE)
                if found or left <= 0:
                    return found
                try:
                    bell.get(True, left)
                except queue.Empty:
                    pass
        finally:
            self._bells.discard(bell)
