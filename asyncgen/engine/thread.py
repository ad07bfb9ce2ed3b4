"""The decode thread: loads the engine, feeds it from the inbox, runs its steps.

The two crossings between threads meet here and in ``streamers.wakeup``: commands come in through a
``queue.SimpleQueue``, events leave through the sinks of the requests. The thread never waits for
an event loop; it waits only for its inbox, and only when there is nothing to compute.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

import anyio

from asyncgen.errors import EngineClosedError, EngineDiedError
from asyncgen.runtime.request_failure import describe
from streamers import LoopBell

if TYPE_CHECKING:
    from types import TracebackType

    from asyncgen.engine.requests.request import Request


_log = logging.getLogger("asyncgen.engine")
_EXIT_SECONDS = 10.0


class Signal:
    """Set once from any thread; awaited on asyncio and trio, from several loops at once."""

    def __init__(self) -> None:
        """Start unset."""
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []
        self._set = False

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._set

    def set(self) -> None:
        """Wake all that wait; a second call does nothing."""
        with self._lock:
            self._set = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function once it is set, on the thread that sets it; at once if it is set.

        Args:
            function: Must not wait and must not raise.
        """
        with self._lock:
            if not self._set:
                self._calls.append(function)
                return
        function()

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set.

        Args:
            timeout: Most seconds to wait; ``None`` for no limit.

        Returns:
            Whether it is set.
        """
        event = threading.Event()
        self.call(event.set)
        try:
            return event.wait(timeout)
        finally:
            self._drop(event.set)

    async def wait(self) -> None:
        """Return once it is set; can be cancelled."""
        event = anyio.Event()
        ring = partial(LoopBell.current().ring, event.set)
        with self._lock:
            if self._set:
                return
            self._calls.append(ring)
        try:
            await event.wait()
        finally:
            self._drop(ring)

    def _drop(self, function: Callable[[], object]) -> None:
        with self._lock:
            if function in self._calls:
                self._calls.remove(function)


class SteppedEngine(Protocol):
    """What the thread needs of an engine (see :class:`asyncgen.engine.core.Engine`)."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def add(self, request: Request) -> None:
        """Queue a request."""

    def abort(self, request: Request) -> None:
        """End a request wherever it is."""

    def step(self) -> None:
        """Give one request one turn."""

    def abort_all(self, reason: str) -> None:
        """End every request."""

    def fail_all(self, error: BaseException) -> None:
        """Tell every request that the engine is dead."""

    def evict(self, request_id: str) -> None:
        """Give back the pages that a finished sample was left."""


@dataclass(frozen=True, slots=True)
class Add:
    """Queue a request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Look at a request whose cancel flag was set; the flag is the truth, this only wakes."""

    request: Request


@dataclass(frozen=True, slots=True)
class Evict:
    """Give back the pages that a finished sample was left."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End every request, or wait for their ends, and leave."""

    drain: bool = False


Command: TypeAlias = Add | Abort | Evict | Stop
L = TypeVar("L")
"""What the owner wants to read of a loaded engine."""

Load: TypeAlias = Callable[[Callable[[], bool]], tuple[SteppedEngine, L]]
"""Loads, given a function that tells whether the thread was asked to leave meanwhile."""


@dataclass(slots=True)
class _Shared(Generic[L]):
    """What the thread and its handle both hold; the thread does not keep the handle alive."""

    load: Load[L] | None
    inbox: queue.SimpleQueue[Command] = field(default_factory=queue.SimpleQueue)
    ready: Signal = field(default_factory=Signal)
    finished: Signal = field(default_factory=Signal)
    answered: Signal = field(default_factory=Signal)
    loaded: L | None = None
    failure: Exception | None = None
    trace: TracebackType | None = None
    stopping: bool = False
    pid: int = field(default_factory=os.getpid)


class DecodeThread(Generic[L]):
    """Handle of the one thread that computes, from load to close."""

    def __init__(
        self,
        load: Load[L],
        *,
        name: str,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Prepare; the thread starts with :meth:`start`.

        Args:
            load: Runs on the thread first; gives the engine and what the owner wants of it. It is
                given a function that tells whether the thread was asked to leave, for code that
                does not come back to the inbox between its steps.
            name: Name of the thread.
            within: What the thread enters before it loads, and leaves after its last step.
        """
        self._shared: _Shared[L] = _Shared(load)
        self._start_lock = threading.Lock()
        # Daemonic, so that an interpreter that is leaving gets as far as `_exit`, which ends it.
        self._thread = threading.Thread(
            target=_run, args=(self._shared, within), name=name, daemon=True
        )
        # Dropped without a close: the thread ends by itself. At exit it is joined as well.
        weakref.finalize(self, _leave, self._shared).atexit = False

    @property
    def is_alive(self) -> bool:
        """Whether requests can be posted."""
        shared = self._shared
        return shared.pid == os.getpid() and self._thread.is_alive() and not shared.stopping

    @property
    def loaded(self) -> L | None:
        """What loading gave, ``None`` before :meth:`wait_ready` returned."""
        return self._shared.loaded

    def require_open(self) -> None:
        """Refuse a request early where it could never be served.

        Raises:
            EngineClosedError: It was closed, or this is another process.
            EngineDiedError: The thread died.
        """
        self.require_own_process()
        if self._shared.stopping:
            raise self._error()

    def start(self) -> None:
        """Start the thread, once.

        Raises:
            EngineClosedError: It was closed, or this is another process.
        """
        self.require_own_process()  # before the lock: a fork may have copied it locked
        with self._start_lock:
            self.require_open()
            if self._thread.ident is None:
                _live[self._thread] = self._shared
                self._thread.start()

    async def wait_ready(self) -> L:
        """Wait until loading is over.

        Returns:
            What loading gave.

        Raises:
            Exception: What loading raised.
            EngineClosedError: The engine was closed meanwhile.
        """
        await self._shared.ready.wait()
        return self._require_loaded()

    def wait_ready_in_thread(self) -> L:
        """Block this thread until loading is over; as :meth:`wait_ready`."""
        self._shared.ready.wait_in_thread()
        return self._require_loaded()

    def post(self, request: Request) -> None:
        """Hand a request to the thread; never waits.

        Raises:
            EngineClosedError: It was closed, or this is another process.
            EngineDiedError: The thread died.
        """
        self.require_open()
        self._shared.inbox.put(Add(request))
        # Between the check and the post the thread may have ended, and then no one answers.
        if self._shared.finished.is_set():
            raise self._error()

    def cancel(self, request: Request) -> None:
        """End a request within one step; never waits; safe anywhere, destructors included."""
        request.cancel.set()
        self._shared.inbox.put(Abort(request))

    def evict(self, request_id: str) -> None:
        """Give back the pages that a finished sample was left; never waits."""
        self._shared.inbox.put(Evict(request_id))

    def stop(self, *, drain: bool = False) -> None:
        """Ask the thread to leave; never waits, idempotent. Nothing can be posted from now on.

        Args:
            drain: Whether it shall first run what was posted to its end; if not, it ends that.
        """
        if self._shared.pid != os.getpid():
            return
        with self._start_lock:
            self._shared.stopping = True
            if self._thread.ident is None:
                self._shared.finished.set()
                self._shared.ready.set()
        self._shared.inbox.put(Stop(drain))

    async def wait_finished(self) -> None:
        """Wait until the thread has left. Call :meth:`stop` first."""
        if self._shared.pid != os.getpid() or self._thread.ident is None:
            return
        await self._shared.finished.wait()
        self._thread.join(_EXIT_SECONDS)  # it is in its last lines

    def join(self, timeout: float | None = None) -> bool:
        """Block this thread until the decode thread has left; it is not asked to.

        Args:
            timeout: Most seconds to wait; ``None`` for no limit.

        Returns:
            Whether it has; yes where it never started, and in a forked process.
        """
        if self._shared.pid != os.getpid() or self._thread.ident is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def call_when_finished(self, function: Callable[[], object]) -> None:
        """Call a function on the thread when it has left and every request was answered."""
        self._shared.answered.call(function)

    @property
    def is_over(self) -> bool:
        """Whether the thread has left and every request was answered; also in a forked process."""
        return self._shared.answered.is_set() or self._shared.pid != os.getpid()

    @property
    def death(self) -> Exception | None:
        """What the thread died of, as an exception to raise; ``None`` if it did not."""
        return None if self._shared.failure is None else self._error()

    @property
    def is_current(self) -> bool:
        """Whether this is asked on the decode thread."""
        return threading.current_thread() is self._thread

    def _require_loaded(self) -> L:
        loaded = self._shared.loaded
        if loaded is None:
            raise self._error()
        return loaded

    def require_own_process(self) -> None:
        """Refuse what waits for a thread that a fork has left behind.

        Raises:
            EngineClosedError: This is another process.
        """
        if self._shared.pid != os.getpid():
            raise EngineClosedError(
                "the engine belongs to the process that this one was forked from; create it "
                "after the fork"
            )

    def _error(self) -> Exception:
        """Why nothing can be posted."""
        failure = self._shared.failure
        if failure is None:
            return EngineClosedError("the engine was closed; create a new one")
        # An exception that is raised again and again would collect the frames of all its receivers.
        if isinstance(failure, EngineDiedError):
            return _death(failure.__cause__)
        return failure.with_traceback(self._shared.trace)


def _run(shared: _Shared[L], within: Callable[[], AbstractContextManager[None]]) -> None:
    """The thread's whole life."""
    engine: SteppedEngine | None = None
    try:
        with within():
            load, shared.load = shared.load, None
            assert load is not None
            engine, shared.loaded = load(lambda: shared.stopping)
            shared.ready.set()
            _serve(shared, engine)
    except BaseException as error:
        # A load that failed is the caller's own exception; later it is the death of the engine.
        if engine is None and isinstance(error, Exception):
            shared.failure, shared.trace = error, error.__traceback__
        else:
            shared.failure = _death(error)
        if engine is not None:
            _log.exception("the decode thread died")
            # Before the readers hear of it, who may look whether it lives or ask it anew at once.
            shared.stopping = True
            engine.fail_all(_death(error))
    finally:
        shared.stopping = True
        # Before the signal, so that no loop waits in its join while gigabytes are freed.
        engine = shared.loaded = None
        shared.finished.set()
        shared.ready.set()
        _refuse_the_rest(shared)
        shared.answered.set()
        _live.pop(threading.current_thread(), None)


def _serve(shared: _Shared[L], engine: SteppedEngine) -> None:
    """Alternate between the inbox and one turn, until told to stop."""
    inbox, draining = shared.inbox, False
    while True:
        while not (engine.has_work or draining) or not inbox.empty():
            match inbox.get():
                case Stop(drain=True):
                    draining = True
                case Stop():
                    engine.abort_all("aborted")
                    return
                case Add(request):
                    engine.add(request)
                case Abort(request):
                    engine.abort(request)
                case Evict(request_id):
                    engine.evict(request_id)
        if not engine.has_work:
            return
        engine.step()


def _refuse_the_rest(shared: _Shared[L]) -> None:
    """Answer what was posted after the last look at the inbox."""
    error = shared.failure or EngineClosedError("the engine was closed")
    while True:
        try:
            command = shared.inbox.get_nowait()
        except queue.Empty:
            return
        if isinstance(command, Add):
            command.request.sink.put_nowait(error)


def _death(cause: BaseException | None) -> EngineDiedError:
    error = EngineDiedError(f"the decode thread died of {describe(cause)}; create a new engine")
    error.__cause__ = cause
    return error


def _leave(shared: _Shared[L]) -> None:
    """Ask a thread whose handle is gone to leave; a forked child has no such thread."""
    if shared.pid == os.getpid():
        shared.stopping = True
        shared.inbox.put(Stop())


_live: dict[threading.Thread, _Shared] = {}


def _exit() -> None:
    """End and join every decode thread before the interpreter takes its modules away."""
    threads = list(_live.items())
    for _, shared in threads:
        _leave(shared)
    for thread, _ in threads:
        thread.join(_EXIT_SECONDS)


atexit.register(_exit)
