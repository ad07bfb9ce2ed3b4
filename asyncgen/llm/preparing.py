"""Threads that make requests ready: they tokenize, render chat templates, check values.

Code in C or Rust cannot be stopped from outside: a pattern of a tokenizer that takes minutes over
one text goes on for minutes. After a time limit its request fails, its thread is abandoned, and
another takes its place. The threads are an engine's own, so that the worker threads of the program
stay free, and they are no reason for the interpreter to stay.
"""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import anyio
import anyio.lowlevel

from asyncgen.errors import InvalidRequestError, OverloadedError
from asyncgen.runtime.request_failure import request_failure
from streamers import LoopBell

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOST_AT_ONCE = 8
"""Requests of one event loop that are made ready at a time, and of all threads without one; others
wait for their turn.
"""

MOST_ABANDONED = 4
"""With so many threads abandoned, long texts are refused; with 16 times as many, all are."""

LONG_TEXT = 4096
"""Characters. What takes long over fewer is rare."""

_RETRY_SECONDS = 10.0
_IDLE_SECONDS = 10.0


class PreparingThreads:
    """The threads of one engine, for any number of event loops."""

    def __init__(self, seconds: float | None) -> None:
        """Start none; they come as they are needed.

        Args:
            seconds: How long one request may take; ``None`` for no limit.
        """
        self._seconds = seconds
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._num_abandoned = 0
        self._is_closed = False
        self._limiters: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar(
            "asyncgen.llm.preparing"
        )

    @property
    def num_abandoned(self) -> int:
        """Threads that still run though nobody waits for them any more."""
        return self._num_abandoned

    @property
    def is_degraded(self) -> bool:
        """True if so many threads are abandoned that long texts are refused."""
        return self._num_abandoned >= MOST_ABANDONED

    async def run(self, function: Callable[[], T], *, length: int, limited: bool = True) -> T:
        """Call a function on a thread; a caller that is cancelled leaves it to itself.

        Args:
            function: What it raises is raised here, as an ``Exception`` in any case.
            length: Characters of the text that it works on.
            limited: Whether the time limit counts.

        Returns:
            What the function returned.

        Raises:
            InvalidRequestError: It took too long.
            OverloadedError: Too many threads hang, and the text is long; or there is no thread.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()  # nothing begins for who is leaving
        self._refuse(length)
        limiter, bell, ended = self._limiter(), LoopBell.current(), anyio.Event()

        def end() -> None:
            ended.set()
            limiter.release_on_behalf_of(ended)

        task = _Task(function, partial(bell.ring, end))
        try:
            limiter.acquire_on_behalf_of_nowait(ended)
        except anyio.WouldBlock:
            await limiter.acquire_on_behalf_of(ended)
        seconds = self._seconds if limited else None
        try:
            self._begin(task, seconds)
        except BaseException:
            limiter.release_on_behalf_of(ended)
            raise
        try:
            with anyio.move_on_after(seconds):
                await ended.wait()
        except BaseException:
            task.expire(self._abandon)
            raise
        return self._outcome(task, length, seconds)

    def run_in_thread(self, function: Callable[[], T], *, length: int, limited: bool = True) -> T:
        """As :meth:`run`, blocking this thread; Ctrl-C leaves the function to itself."""
        self._refuse(length)
        ended = threading.Event()

        def end() -> None:
            ended.set()
            self._places.release()

        task = _Task(function, end)
        self._places.acquire()
        seconds = self._seconds if limited else None
        try:
            self._begin(task, seconds)
        except BaseException:
            self._places.release()
            raise
        try:
            ended.wait(seconds)
        except BaseException:
            task.expire(self._abandon)
            raise
        return self._outcome(task, length, seconds)

    def close(self) -> None:
        """End the threads that have nothing to do; the others end when they are done."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.inbox.put(None)
            worker.thread.join(1.0)

    def settle(self, worker: _Worker, task: _Task) -> bool:
        """A task has ended, and its caller is to be told; return whether its thread is to stay."""
        with self._lock:
            task.is_over = True
            if task.is_abandoned:
                self._num_abandoned -= 1
            stays = not self._is_closed
            if stays:
                self._idle.append(worker)
        if not task.is_abandoned:
            task.tell()
        return stays

    def leave(self, worker: _Worker) -> bool:
        """Let a thread end that has been idle for long; ``False`` if a task is on its way to it."""
        with self._lock:
            if worker not in self._idle:
                return False
            self._idle.remove(worker)
            return True

    def _refuse(self, length: int) -> None:
        most = MOST_ABANDONED if length > LONG_TEXT else 16 * MOST_ABANDONED
        if self._num_abandoned >= most:
            raise OverloadedError(
                f"{self._num_abandoned} texts are being tokenized for longer than "
                f"{self._seconds} s, so texts of more than {LONG_TEXT} characters are refused; "
                "try again later",
                _RETRY_SECONDS,
                is_degraded=True,
            )

    def _limiter(self) -> anyio.CapacityLimiter:
        limiter = self._limiters.get(None)
        if limiter is None:
            limiter = anyio.CapacityLimiter(MOST_AT_ONCE)
            self._limiters.set(limiter)
        return limiter

    def _begin(self, task: _Task[T], seconds: float | None) -> None:
        """Give a task to a thread, for so long."""
        try:
            worker = self._worker()
        except RuntimeError as error:  # the system gives no thread
            message = f"there is no thread to tokenize on ({error}); try again later"
            raise OverloadedError(message, _RETRY_SECONDS, is_degraded=True) from error
        if seconds is not None:
            task.deadline = time.monotonic() + seconds
        worker.inbox.put(task)

    def _outcome(self, task: _Task[T], length: int, seconds: float | None) -> T:
        """Return the result of a task, or abandon it."""
        if self._abandon(task):
            raise InvalidRequestError(
                "prompt",
                f"a text of {length} characters",
                f"it was not tokenized within {seconds:g} s (`prepare_seconds`); shorten it",
            )
        return task.outcome()

    def _worker(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Worker(self)

    def _abandon(self, task: _Task) -> bool:
        """Give a task up if it has not ended; return whether it had not."""
        with self._lock:
            if task.is_over or task.is_abandoned:
                return task.is_abandoned
            task.is_abandoned = True
            self._num_abandoned += 1
        task.tell()
        return True


class _Task(Generic[T]):
    """A function that is called on a thread, while its caller waits.

    Attributes:
        is_over: Whether the function has returned.
        is_abandoned: Whether it was given up before that.
        deadline: When it is to be given up, by the monotonic clock; ``None`` for never.
    """

    def __init__(self, function: Callable[[], T], end: Callable[[], object]) -> None:
        """Args:
        function: What to call.
        end: Called once, from any thread, when it has returned or was given up.
        """
        self.is_over = self.is_abandoned = False
        self.deadline: float | None = None
        self._function = function
        self._end = end
        self._result: T | None = None
        self._error: Exception | None = None
        self._timer: threading.Timer | None = None

    def run(self) -> None:
        """Call the function; on the thread."""
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = request_failure(error)

    def tell(self) -> None:
        """Wake the caller, and give the place of the task to the next."""
        if self._timer is not None:
            self._timer.cancel()
        self._end()

    def expire(self, abandon: Callable[[_Task], object]) -> None:
        """Have it given up in time though nobody waits; nearly all end before that."""
        if self.deadline is None:
            return
        seconds = max(self.deadline - time.monotonic(), 0)
        self._timer = threading.Timer(seconds, partial(abandon, self))
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError:  # the system gives no thread
            abandon(self)
        if self.is_over:
            self._timer.cancel()

    def outcome(self) -> T:
        """Return what the function returned, or raise what it raised."""
        error, self._error = self._error, None
        if error is None:
            return cast("T", self._result)
        try:
            raise error
        finally:
            del error  # which holds this frame


class _Worker:
    """One thread, and the tasks that are on their way to it."""

    def __init__(self, owner: PreparingThreads) -> None:
        self.inbox: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._owner = owner
        self.thread = threading.Thread(target=self._run, name="asyncgen-prepare", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                task = self.inbox.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                if self._owner.leave(self):
                    return
                continue
            if task is None:
                return
            task.run()
            if not self._owner.settle(self, task):
                return
            del task  # and the request with it
