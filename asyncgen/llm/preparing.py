"""Threads that make requests ready: they tokenize, render chat templates, check values.

Code in C or Rust cannot be stopped from outside: a pattern of a tokenizer that takes minutes over
one text goes on for minutes. After a time limit its request fails, its thread is abandoned, and
another takes its place. The threads are an engine's own, so that the worker threads of the program
stay free, and they are no reason for the interpreter to stay.

Callers only put tasks into an inbox; the threads take them, and count themselves. So Ctrl-C, which
is raised in the main thread between any two instructions, finds nothing half done.
"""

from __future__ import annotations

import _thread
import queue
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel

from asyncgen.errors import (
    EngineClosedError,
    EngineReentryError,
    InvalidRequestError,
    InWords,
    OverloadedError,
)
from asyncgen.runtime.beside import call_beside, run_to_end, start_thread
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.user_code import share_thread
from asyncgen.runtime.wanted import ASKED
from streamers import LoopBell, get_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MOST_AT_ONCE = 8
"""Requests of one event loop that are made ready at a time, and of all threads without one; others
wait for their turn.
"""

MOST_OF_CLIENT = MOST_AT_ONCE - 1
"""Of these, requests of one client: the next one finds a place at once."""

MOST_ABANDONED = 4
"""With so many threads abandoned, long texts are refused; with 16 times as many, all are."""

LONG_TEXT = 4096
"""Characters. What takes long over fewer is rare."""

_RETRY_SECONDS = 10.0
_IDLE_SECONDS = 10.0

_here = threading.local()
"""The lock of the engine that this thread prepares for, as ``lock``; elsewhere nothing."""


class PreparingThreads:
    """The threads of one engine, for any number of event loops."""

    def __init__(self, seconds: float | None) -> None:
        """Start none; they come as they are needed.

        Args:
            seconds: How long one request may take; ``None`` for no limit.
        """
        self._seconds = seconds
        self._lock = threading.RLock()
        self._for_loops = _Crew(self._lock, None)
        self._for_threads = _Crew(self._lock, MOST_AT_ONCE)
        self._places: anyio.lowlevel.RunVar[_Places] = anyio.lowlevel.RunVar(
            "asyncgen.llm.preparing"
        )

    @property
    def num_abandoned(self) -> int:
        """Threads that still run though nobody waits for them any more."""
        return len(self._for_loops.abandoned) + len(self._for_threads.abandoned)

    @property
    def is_degraded(self) -> bool:
        """True if so many threads are abandoned that long texts are refused."""
        return self.num_abandoned >= MOST_ABANDONED

    async def run(
        self,
        function: Callable[[], T],
        *,
        length: int,
        limited: bool = True,
        client: str | None = None,
    ) -> T:
        """Call a function on a thread; a caller that is cancelled leaves it to itself.

        Args:
            function: What it raises is raised here, as an ``Exception`` in any case.
            length: Characters of the text that it works on.
            limited: Whether the time limit counts.
            client: Whose request it is: clients that wait take turns.

        Returns:
            What the function returned.

        Raises:
            InvalidRequestError: It took too long.
            OverloadedError: Too many threads hang, and the text is long; or there is no thread.
            EngineReentryError: A thread of the same engine asks.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()  # nothing begins for who is leaving
        self._refuse(length)
        places, bell = self._of_loop(), LoopBell.current()
        limiter, own = places.limiter, places.own.get(client)
        if own is None:
            own = places.own[client] = anyio.CapacityLimiter(MOST_OF_CLIENT)
        wake, ended = bell.waiter()

        def leave(held: anyio.CapacityLimiter) -> None:
            with suppress(RuntimeError):  # it has no place yet, or none any more
                held.release_on_behalf_of(ended)

        def end() -> None:  # in three calls: Ctrl-C in the midst of one leaves the others
            bell.ring(wake)
            bell.ring(partial(leave, own))
            bell.ring(partial(leave, limiter))

        seconds = self._seconds if limited else None
        crew, task = self._for_loops, _Task(function, end, seconds)
        try:
            try:
                own.acquire_on_behalf_of_nowait(ended)
                limiter.acquire_on_behalf_of_nowait(ended)
            except anyio.WouldBlock:
                # One of each client waits for a place, so that places go to clients in turn.
                async with places.door(client):
                    if ended not in own.statistics().borrowers:
                        await own.acquire_on_behalf_of(ended)
                    await limiter.acquire_on_behalf_of(ended)
            crew.add(task)
            await bell.await_waiter(ended, wake, seconds)
        except BaseException:
            if crew.leave(task):
                leave(own)
                leave(limiter)
            raise
        return self._outcome(crew, task, length)

    def run_in_thread(self, function: Callable[[], T], *, length: int, limited: bool = True) -> T:
        """As :meth:`run`, blocking this thread; Ctrl-C leaves the function to itself."""
        self._refuse(length)
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        seconds = self._seconds if limited else None
        crew, task = self._for_threads, _Task(function, partial(ended.put, None), seconds)
        try:
            crew.add(task)
            while (left := task.seconds_left()) is None or left > 0:
                try:
                    get_interruptibly(ended, seconds if left is None else left)
                    break
                except queue.Empty:
                    continue
        except BaseException:
            crew.leave(task)
            raise
        return self._outcome(crew, task, length)

    def close(self) -> None:
        """End the threads that have nothing to do; the others end when they are done.

        Requests that wait for a thread are answered that the engine is closed.
        """
        for crew in (self._for_loops, self._for_threads):
            crew.close()

    def _refuse(self, length: int) -> None:
        if getattr(_here, "lock", None) is self._lock:
            raise EngineReentryError(
                "code that an engine is preparing a request with (a tokenizer) asks the same "
                "engine, which would wait for itself; ask from another task, or use a second engine"
            )
        most = MOST_ABANDONED if length > LONG_TEXT else 16 * MOST_ABANDONED
        if self.num_abandoned >= most:
            raise OverloadedError(
                f"{self.num_abandoned} texts are being tokenized for longer than "
                f"{self._seconds} s, so texts of more than {LONG_TEXT} characters are refused; "
                "try again later",
                _RETRY_SECONDS,
                is_degraded=True,
            )

    def _of_loop(self) -> _Places:
        places = self._places.get(None)
        if places is None:
            places = _Places()
            self._places.set(places)
        return places

    def _outcome(self, crew: _Crew, task: _Task[T], length: int) -> T:
        """Return the result of a task, or abandon it."""
        if crew.abandon(task):
            raise InvalidRequestError(
                "prompt",
                InWords(f"a text of {length} characters"),
                f"it was not tokenized within {task.seconds:g} s (`prepare_seconds`); shorten it",
            )
        return task.outcome()


class _Places:
    """Places of one event loop, those of each client, and a door before them for who waits.

    Attributes:
        limiter: The places.
        own: Those that a client may have, for as long as it has any.
    """

    def __init__(self) -> None:
        """With nobody there."""
        self.limiter = anyio.CapacityLimiter(MOST_AT_ONCE)
        self.own: WeakValueDictionary[str | None, anyio.CapacityLimiter] = WeakValueDictionary()
        self._doors: WeakValueDictionary[str | None, anyio.Lock] = WeakValueDictionary()

    def door(self, client: str | None) -> anyio.Lock:
        """Return the lock that lets one request of a client wait."""
        door = self._doors.get(client)
        if door is None:
            door = self._doors[client] = anyio.Lock()
        return door


class _Task(Generic[T]):
    """A function that is called on a thread, while its caller waits.

    Attributes:
        seconds: How long it may take; ``None`` for no limit.
        is_begun: Whether a thread has taken it.
        is_left: Whether its caller has left.
        is_dropped: Whether it had left before a thread took it; then it is nobody's.
        is_over: Whether the function has returned.
        is_abandoned: Whether it was given up before that.
        thread: The thread that has taken it.
        deadline: When it is to be given up, by the monotonic clock; ``None`` for never, and
            before it has begun.
    """

    def __init__(
        self, function: Callable[[], T], end: Callable[[], object], seconds: float | None
    ) -> None:
        """Args:
        function: What to call.
        end: Called from any thread when it has returned or was given up; maybe twice.
        seconds: How long it may take; ``None`` for no limit.
        """
        self.seconds = seconds
        self.is_begun = self.is_left = self.is_dropped = False
        self.is_over = self.is_abandoned = False
        self.thread = threading.current_thread()
        self.deadline: float | None = None
        self._function = function
        self._end = end
        self._result: T | None = None
        self._error: Exception | None = None
        self._timer: threading.Timer | None = None

    def run(self, is_closed: Callable[[], bool]) -> None:
        """Call the function; on the thread. Where the engine is closed, that is why it fails."""
        failure: Exception | None = None
        try:
            if not is_closed():
                self._result = self._function()
                return
        except BaseException as error:
            failure = request_failure(error)
        if is_closed():
            self._error = EngineClosedError("the engine was closed; create a new one")
            self._error.__cause__ = failure
        else:
            self._error = failure

    def refuse(self, error: Exception) -> None:
        """Tell the caller that nothing came of it."""
        self._error = error
        self.is_over = True
        self.tell()

    def tell(self) -> None:
        """Wake the caller, and give the place of the task to the next."""
        if self._timer is not None:
            self._timer.cancel()
        self._end()

    def seconds_left(self) -> float | None:
        """Seconds until it is given up; ``None`` where that is not known yet, or never."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def expire(self, abandon: Callable[[_Task], object]) -> None:
        """Have it given up in time though nobody waits; nearly all end before that."""
        left = self.seconds_left()
        if left is None:
            return
        self._timer = threading.Timer(max(left, 0), partial(abandon, self))
        self._timer.daemon = True
        try:
            call_beside(self._timer.start)
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


class _Crew:
    """Threads that take tasks out of one inbox, as many as there are tasks, up to a limit.

    What they count changes under the lock: on the threads themselves, or without a call in between,
    where no signal is handled either.

    Attributes:
        abandoned: Tasks that were given up and still run, each on a thread of its own.
    """

    def __init__(self, lock: threading.RLock, most: int | None) -> None:
        """Args:
        lock: Guards the counts.
        most: Most threads, without those whose task was given up; ``None`` for no limit.
        """
        self._inbox: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = lock
        self._most = most
        self._tasks: dict[_Task, None] = {}  # they wait for a thread
        self.abandoned: set[_Task] = set()
        self._counted: set[threading.Thread] = set()  # all but those whose task was given up
        self._free: set[threading.Thread] = set()  # they wait for a task, or are on their way to
        self._is_closed = False

    def add(self, task: _Task) -> None:
        """Have a task run.

        Raises:
            OverloadedError: There is no thread.
        """
        self._tasks[task] = None
        self._inbox.put(task)
        if self._inbox.qsize() > len(self._free):
            self._call_for_threads()

    def leave(self, task: _Task) -> bool:
        """Note that the caller of a task waits no more; return whether it will never run."""
        task.is_left = True
        if not self._drop(task):
            task.expire(self.abandon)
        return task.is_dropped

    def _drop(self, task: _Task) -> bool:
        """Have no thread take a task; return whether none had."""
        with self._lock:
            if not task.is_begun:
                task.is_dropped = True
                self._tasks.pop(task, None)
                self.abandoned.discard(task)
        return task.is_dropped

    def abandon(self, task: _Task) -> bool:
        """Give a task up if it has not ended; return whether it had not."""
        with self._lock:
            if task.is_over or task.is_abandoned:
                return task.is_abandoned
            task.is_abandoned = True
            self.abandoned.add(task)
            self._counted.discard(task.thread)
        task.tell()
        if not self._inbox.empty():
            self._call_for_threads()
        return True

    def close(self) -> None:
        """End the threads that wait for a task."""
        self._is_closed = True
        free = list(self._free)
        for _ in free:
            self._inbox.put(None)
        for thread in free:
            with suppress(RuntimeError):  # it has not begun
                thread.join(1.0)

    def _call_for_threads(self) -> None:
        """Start threads for the tasks that find none, from a thread that gets no signals."""
        try:
            if threading.current_thread() is threading.main_thread():
                _thread.start_new_thread(self._start_threads, ())
            else:
                self._start_threads()
        except RuntimeError as error:
            raise no_thread(error) from error

    def _start_threads(self) -> None:
        while True:
            begun: queue.SimpleQueue[None] = queue.SimpleQueue()
            thread = threading.Thread(
                target=self._live, args=(begun,), name="asyncgen-prepare", daemon=True
            )
            with self._lock:
                is_full = self._most is not None and len(self._counted) >= self._most
                if is_full or self._inbox.qsize() <= len(self._free):
                    return
                self._free.add(thread)
                self._counted.add(thread)
            try:
                start_thread(thread, begun)
            except BaseException as error:
                with self._lock:
                    self._free.discard(thread)
                    self._counted.discard(thread)
                if not isinstance(error, RuntimeError):
                    raise
                with suppress(queue.Empty):  # the system gives no thread, or none that lives
                    task = self._inbox.get_nowait()
                    if task is not None and self._drop(task):
                        task.refuse(no_thread(error))

    def _live(self, begun: queue.SimpleQueue[None]) -> None:
        """Do tasks until there are none: the whole life of a thread."""
        here, taken = threading.current_thread(), _Taken()
        run_to_end(partial(self._work, here, begun, taken), partial(self._leave_crew, here, taken))

    def _work(self, here: threading.Thread, begun: queue.SimpleQueue[None], taken: _Taken) -> None:
        begun.put(None)
        shared = share_thread()
        _here.lock = self._lock
        while True:
            try:
                task = self._inbox.get(timeout=0 if self._is_closed else _IDLE_SECONDS)
            except queue.Empty:
                task = None
            with self._lock:
                self._free.discard(here)
                if task is not None and not (task.is_begun or task.is_dropped):
                    taken.task = task
                    self._tasks.pop(task, None)
                    task.is_begun, task.thread = True, here
                    if task.seconds is not None:
                        task.deadline = time.monotonic() + task.seconds
                else:
                    self._counted.discard(here)
            if self._inbox.qsize() > len(self._free):  # they came while this one was on its way
                self._start_threads()
            if task is None:
                return
            if taken.task is not None:
                asked = ASKED.set(partial(self._is_wanted, task))
                task.run(lambda: self._is_closed)  # raises nothing
                ASKED.reset(asked)
            if shared.turns:
                shared.settle()
            self._settle(taken, here)
            taken.task = None
            del task  # and the request with it

    def _leave_crew(
        self, here: threading.Thread, taken: _Taken, error: BaseException | None
    ) -> None:
        """Note that a thread ends; one that died answers its task, and others do its work."""
        with suppress(RuntimeError):  # until it holds the lock no more: a tracer raised behind it
            while True:
                self._lock.release()
        with self._lock:
            self._free.discard(here)
            self._counted.discard(here)
            if error is None:
                return
            task, waiting = taken.task, list(self._tasks)
            if task is not None:
                self.abandoned.discard(task)
        if task is not None and task.is_over:
            task.tell()
        elif task is not None:
            task.refuse(request_failure(error))
        for each in waiting:  # it may have taken one out of the inbox; what is begun is passed over
            self._inbox.put(each)
        if waiting:
            self._start_threads()

    def _is_wanted(self, task: _Task) -> bool:
        """Tell whether somebody waits for a task that runs."""
        return not (task.is_left or task.is_abandoned or self._is_closed)

    def _settle(self, taken: _Taken, here: threading.Thread) -> None:
        """Note that a turn has ended, and tell who waits for it."""
        task = taken.task
        with self._lock:
            if task is not None:
                task.is_over = True
                self.abandoned.discard(task)
            self._free.add(here)
            self._counted.add(here)
        if task is not None and not task.is_abandoned:
            task.tell()


class _Taken:
    """What a thread has begun and not told of yet.

    Attributes:
        task: The task, if any.
    """

    task: _Task | None = None


def no_thread(error: Exception) -> OverloadedError:
    """Return the error of a request for which no thread could be started."""
    message = f"there is no thread to tokenize on ({error}); try again later"
    made = OverloadedError(message, _RETRY_SECONDS, is_degraded=True)
    made.__cause__ = error
    return made
