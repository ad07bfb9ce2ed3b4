"""Work that an exception of a signal handler cannot tear, and threads whose end is noticed.

The interpreter raises Ctrl-C in the main thread, between any two instructions of Python code, also
in that of `threading`: an interrupted `Thread.start` leaves a thread that never begins, and an
interrupted `Condition` a lock that nobody releases. Code of C is not torn.

A tracer or profiler for all threads (`threading.settrace`) that raises does the same to any thread,
and ends one before its first line; the interpreter turns it off on that thread by that.
"""

from __future__ import annotations

import _thread
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SLICE = 0.5
"""Most seconds of one wait: a signal just before a thread sleeps does not wake it."""

_LOOK_SECONDS = 0.01
"""Time between two looks whether a thread that has not begun has ended."""


class ThreadEndedError(RuntimeError):
    """A thread ended before its first line."""


def start_thread(thread: threading.Thread, begun: queue.SimpleQueue[None]) -> None:
    """Start a thread, and wait for its first line.

    Args:
        thread: Not started.
        begun: The thread puts something into it at once.

    Raises:
        ThreadEndedError: It has ended before that.
        RuntimeError: The system gives no thread.
    """
    thread.start()
    while True:
        is_alive = thread.is_alive()
        try:
            begun.get(True, _LOOK_SECONDS)
            return
        except queue.Empty:
            if is_alive:
                continue
        raise ThreadEndedError(
            f"the thread {thread.name} ended before its first line{_blame_tracers()}"
        )


def _blame_tracers() -> str:
    """Name what is set for all threads, for it may have raised."""
    found = {
        "threading.settrace": threading.gettrace(),
        "threading.setprofile": threading.getprofile(),
    }
    named = [f"of `{setter}`" for setter, function in found.items() if function is not None]
    return f": what the function {' or '.join(named)} raises ends every new one" if named else ""


def run_to_end(work: Callable[[], object], end: Callable[[BaseException | None], object]) -> None:
    """Call a function, and another behind it in any case; on a thread that ends by that.

    Tracer and profiler of the thread are off before the second: in any other ``finally`` they may
    raise as well, once each.

    Args:
        work: What it raises goes to the end.
        end: Called with that, or ``None``.
    """
    failure: BaseException | None = None
    try:
        try:
            try:
                work()
            finally:
                _turn_off()
        finally:
            _turn_off()
    except BaseException as error:
        failure = error
    try:
        end(failure)
    finally:
        del failure  # which holds this frame


def _turn_off() -> None:
    sys.settrace(None)
    sys.setprofile(None)


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
    else:
        call_elsewhere(function)


def call_elsewhere(function: Callable[[], object]) -> None:
    """Call a function on a thread of its own, which no tracer for all threads meets; wait for it.

    Raises:
        RuntimeError: The system gives no thread.
        BaseException: What the function raised.
    """
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
