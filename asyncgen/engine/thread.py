"""Run the engine on the decode thread: load it, feed it from the inbox, run its steps.

Two crossings between threads lie here and in ``streamers.wakeup``: commands come in through a
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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from asyncgen.engine.commands import Abort, Add, Command, Evict, Pause, Stop
from asyncgen.engine.core import Engine
from asyncgen.engine.pauses import Pauses
from asyncgen.errors import EngineClosedError, EngineDiedError, EngineReentryError
from asyncgen.runtime.beside import ThreadEndedError, call_beside, run_to_end, start_thread
from asyncgen.runtime.request_failure import describe
from asyncgen.runtime.user_code import share_thread
from asyncgen.runtime.wanted import UnwantedError, asking
from streamers import LoopBell, get_interruptibly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from asyncgen.engine.requests.request import Request


_log = logging.getLogger("asyncgen.engine")
_EXIT_SECONDS = 10.0


class Signal:
    """Flag that any thread sets once, and that tasks of asyncio and trio wait for."""

    def __init__(self) -> None:
        """Start unset."""
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []
        self._set = False

    def is_set(self) -> bool:
        """Return whether it has been set."""
        return self._set

    def set(self) -> None:
        """Wake all waiters; a second call does nothing."""
        with self._lock:
            self._set = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the thread that sets the flag; at once if it is set.

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
            True if it is set.
        """
        if self._set:
            return True
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        ring = partial(bell.put, None)
        try:
            self.call(ring)
            get_interruptibly(bell, timeout)
        except queue.Empty:
            pass
        finally:
            self._drop(ring)
        return self._set

    async def wait(self) -> None:
        """Wait until it is set; can be cancelled."""
        if self._set:
            return
        bell = LoopBell.current()
        wake, waiter = bell.waiter()
        ring = partial(bell.ring, wake)
        with self._lock:
            if self._set:
                return
            self._calls.append(ring)
        try:
            await bell.await_waiter(waiter, wake, None)
        finally:
            self._drop(ring)

    def _drop(self, function: Callable[[], object]) -> None:
        with self._lock:
            if function in self._calls:
                self._calls.remove(function)


L = TypeVar("L")
"""Type of the object that loading returns for the owner of the thread."""

Load: TypeAlias = Callable[[Callable[[], bool]], tuple[Engine, L]]
"""Function that loads; it is given a function that tells whether the thread shall stop."""


@dataclass(slots=True)
class _Shared(Generic[L]):
    """State of the thread and its handle; the thread does not keep the handle alive."""

    load: Load[L] | None
    begun: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    inbox: queue.SimpleQueue[Command] = field(default_factory=queue.SimpleQueue)
    posted: dict[int, Request] = field(default_factory=dict)
    """Requests that the engine has not taken, by identity: one may be torn out of the inbox."""
    ready: Signal = field(default_factory=Signal)
    finished: Signal = field(default_factory=Signal)
    answered: Signal = field(default_factory=Signal)
    pauses: Pauses = field(default_factory=Pauses)
    engine: Engine | None = None
    loaded: L | None = None
    failure: Exception | None = None
    trace: TracebackType | None = None
    stopping: bool = False
    asks: _Shared[Any] | None = None
    """Engine that code on this thread has asked during the present step."""
    pid: int = field(default_factory=os.getpid)


_here = threading.local()
"""The state of the decode thread that this thread is, as ``shared``; elsewhere nothing."""


class DecodeThread(Generic[L]):
    """Handle of the one thread that computes, from loading to closing."""

    def __init__(
        self,
        load: Load[L],
        *,
        name: str,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Prepare; the thread starts with :meth:`start`.

        Args:
            load: Runs first on the thread; returns the engine, and an object for the owner. It is
                given a function that tells whether the thread shall stop, for code that does not
                return to the inbox between its steps.
            name: Name of the thread.
            within: Context that the thread enters before loading, and leaves after its last step.
        """
        self._shared: _Shared[L] = _Shared(load)
        self._start_lock = threading.Lock()
        self._is_started = False
        # A daemon, so that an interpreter that exits reaches `_exit`, which ends the thread.
        self._thread = threading.Thread(
            target=_run, args=(self._shared, within), name=name, daemon=True
        )
        # If the handle is dropped without a close, the thread ends. At exit it is joined as well.
        weakref.finalize(self, _leave, self._shared).atexit = False

    @property
    def is_alive(self) -> bool:
        """True if requests can be posted."""
        shared = self._shared
        return shared.pid == os.getpid() and self._thread.is_alive() and not shared.stopping

    @property
    def is_stopping(self) -> bool:
        """True if it was asked to stop, or has ended."""
        return self._shared.stopping

    @property
    def loaded(self) -> L | None:
        """Object that loading returned; ``None`` before :meth:`wait_ready` returned."""
        return self._shared.loaded

    def require_open(self) -> None:
        """Check that requests can be served.

        Raises:
            EngineClosedError: It was closed, or this is another process.
            EngineDiedError: The thread died.
        """
        self.require_own_process()
        if self._shared.stopping:
            raise self._error()

    def require_answers(self) -> None:
        """Check that this thread may wait for an answer of the engine.

        Raises:
            EngineReentryError: It computes for this engine, or for one that waits for it.
        """
        asker = getattr(_here, "shared", None)
        if asker is not None:
            _ask(asker, self._shared)

    def start(self) -> None:
        """Start the thread, once.

        Raises:
            EngineClosedError: It was closed, or this is another process.
            EngineDiedError: It has died, maybe before its first line.
        """
        self.require_open()
        if not self._is_started:
            call_beside(self._start)

    def _start(self) -> None:
        with self._start_lock:
            self.require_open()
            if not self._is_started:
                _live[self._thread] = self._shared
                try:
                    start_thread(self._thread, self._shared.begun)
                except RuntimeError as error:
                    _live.pop(self._thread, None)  # else the exit would join it
                    if not isinstance(error, ThreadEndedError):  # the system gives none yet
                        raise
                    _end(self._shared, error)
                    raise self._error() from error
                self._is_started = True

    async def wait_ready(self) -> L:
        """Wait until loading is over.

        Returns:
            The object that loading returned.

        Raises:
            Exception: Loading raised it.
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
        self._shared.posted[id(request)] = request
        self._shared.inbox.put(Add(request))
        # The thread may have ended between the check and the post, and then nobody answers.
        if self._shared.finished.is_set():
            self._shared.posted.pop(id(request), None)
            raise self._error()

    def cancel(self, request: Request) -> None:
        """End a request within one step; never waits; safe anywhere, also in destructors."""
        request.cancel.set()
        self._shared.inbox.put(Abort(request))

    def evict(self, request_id: str) -> None:
        """Free the blocks that a finished sequence kept; never waits."""
        self._shared.inbox.put(Evict(request_id))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the thread between two steps for as long as the block runs.

        Requests keep their memory and go on behind the block. Those that are added meanwhile, and
        those that have not begun, share no pages that were computed before it.

        Raises:
            EngineClosedError: The thread does not run, or ended before it could pause.
            EngineDiedError: It died before it could pause.
            RuntimeError: The decode thread itself calls this.
        """
        if self.is_current:
            raise RuntimeError("the decode thread cannot wait for itself; pause on another thread")
        self.require_own_process()
        pauses, inbox = self._shared.pauses, self._shared.inbox
        pause = object()
        try:
            if not pauses.acquire(pause, lambda: inbox.put(Pause())):
                raise self._error()
            yield
        finally:
            pauses.release(pause)

    @property
    def is_paused_here(self) -> bool:
        """True if the calling thread holds a pause."""
        return self._shared.pauses.is_held_here

    def stop(self, *, drain: bool = False) -> None:
        """Ask the thread to stop; never waits, idempotent. Nothing can be posted from now on.

        Args:
            drain: Whether to serve posted requests first; if not, they are ended.
        """
        if self._shared.pid != os.getpid():
            return
        with self._start_lock:
            self._shared.stopping = True
        if not self._is_started:
            for signal in (self._shared.finished, self._shared.ready, self._shared.answered):
                signal.set()
        self._shared.inbox.put(Stop(drain))

    async def wait_finished(self) -> None:
        """Wait until the thread has ended; call :meth:`stop` first.

        Returns at once on the thread itself.
        """
        if self._shared.pid != os.getpid() or not self._is_started or self.is_current:
            return
        await self._shared.finished.wait()
        self._thread.join(_EXIT_SECONDS)  # it is in its last lines

    def join(self, timeout: float | None = None) -> bool:
        """Block this thread until the decode thread has ended, without asking it to.

        Args:
            timeout: Most seconds to wait; ``None`` for no limit.

        Returns:
            True if it has ended; also if it never started, and in a forked process. On the thread
            itself False, at once: it ends behind its step.
        """
        if self.is_current:
            return False
        if self._shared.pid != os.getpid() or not self._is_started:
            return True
        # An interrupted `Thread.join` takes a thread that runs for one that has ended.
        if not self._shared.answered.wait_in_thread(timeout):
            return False
        self._thread.join(_EXIT_SECONDS)  # it is in its last lines
        return not self._thread.is_alive()

    def call_when_finished(self, function: Callable[[], object]) -> None:
        """Call a function on the thread when it has ended and every request was answered."""
        self._shared.answered.call(function)

    @property
    def is_over(self) -> bool:
        """True if the thread has ended and answered every request; also in a forked process."""
        return self._shared.answered.is_set() or self._shared.pid != os.getpid()

    @property
    def death(self) -> Exception | None:
        """Error to raise if the thread died; ``None`` if it did not."""
        return None if self._shared.failure is None else self._error()

    @property
    def is_current(self) -> bool:
        """True on the decode thread."""
        return threading.current_thread() is self._thread

    def _require_loaded(self) -> L:
        loaded = self._shared.loaded
        if loaded is None:
            raise self._error()
        return loaded

    def require_own_process(self) -> None:
        """Check that the thread belongs to this process, as a fork does not copy it.

        Raises:
            EngineClosedError: This is another process.
        """
        if self._shared.pid != os.getpid():
            raise EngineClosedError(
                "the engine belongs to the process that this one was forked from; create it "
                "after the fork"
            )

    def _error(self) -> Exception:
        """Return the error of a post: the engine was closed, or died."""
        failure = self._shared.failure
        if failure is None:
            return EngineClosedError("the engine was closed; create a new one")
        # One exception that is raised many times would collect the frames of all receivers.
        if isinstance(failure, EngineDiedError):
            return _death(failure.__cause__)
        return failure.with_traceback(self._shared.trace)


def _run(shared: _Shared[L], within: Callable[[], AbstractContextManager[None]]) -> None:
    """Load, serve until the end, answer the rest: the whole life of the thread."""
    run_to_end(partial(_live_on, shared, within), partial(_end, shared))


def _live_on(shared: _Shared[L], within: Callable[[], AbstractContextManager[None]]) -> None:
    """Load, and serve until told to stop."""
    shared.begun.put(None)
    _here.shared = shared
    share_thread()
    with within():
        load, shared.load = shared.load, None
        assert load is not None
        with asking(lambda: not shared.stopping):
            shared.engine, shared.loaded = load(lambda: shared.stopping)
        shared.ready.set()
        _serve(shared, shared.engine)


def _end(shared: _Shared[L], error: BaseException | None) -> None:
    """Answer all who wait; behind the last step, or in place of a thread that never began."""
    shared.stopping = True  # before the readers get the error, who may then check
    try:
        if error is not None and not isinstance(error, UnwantedError):  # closed while it loaded
            _fail(shared, error)
    finally:
        # Before the signal, so that no loop waits in its join while gigabytes are freed.
        shared.engine = shared.loaded = None
        shared.finished.set()
        shared.ready.set()
        shared.pauses.end()
        _refuse_the_rest(shared)
        shared.answered.set()
        _live.pop(threading.current_thread(), None)


def _fail(shared: _Shared[L], error: BaseException) -> None:
    """Keep why the thread has ended, and tell those whose requests it has taken."""
    engine = shared.engine
    # An error of loading is raised to the caller as it is; a later one is the engine's death.
    if engine is None and isinstance(error, Exception) and not isinstance(error, ThreadEndedError):
        shared.failure, shared.trace = error, error.__traceback__
    else:
        shared.failure = _death(error)
    if engine is not None:
        engine.fail_all(_death(error))
        with suppress(BaseException):  # a handler of the user's may raise
            _log.error("the decode thread died", exc_info=error)


def _serve(shared: _Shared[L], engine: Engine) -> None:
    """Alternate between the inbox and one step, until told to stop."""
    inbox, draining, thread = shared.inbox, False, share_thread()
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
                    shared.posted.pop(id(request), None)
                case Abort(request):
                    shared.posted.pop(id(request), None)
                    engine.abort(request)
                case Evict(request_id):
                    engine.evict(request_id)
                case Pause():
                    engine.settle()
                    if shared.pauses.hold():
                        engine.forget_weights()
        if not engine.has_work:
            return
        shared.asks = None
        engine.step()
        if thread.turns:
            thread.settle()


def _ask(asker: _Shared[Any], asked: _Shared[Any]) -> None:
    """Note that a decode thread asks an engine; refuse a ring, in which all would wait.

    Raises:
        EngineReentryError: The asked thread is the asker, or waits for it.
    """
    each: _Shared[Any] | None = asked
    while each is not None:
        if each is asker:
            raise EngineReentryError(
                "code that an engine is computing with (a processor, a criterion, a streamer, a "
                "method) asks the same engine, which would wait for itself; ask from another task, "
                "or use a second engine"
            )
        each = each.asks
    asker.asks = asked


def _refuse_the_rest(shared: _Shared[L]) -> None:
    """Answer requests that were posted after the last look at the inbox."""
    error = shared.failure or EngineClosedError("the engine was closed")
    while shared.posted:
        shared.posted.popitem()[1].sink.put_nowait(error)


def _death(cause: BaseException | None) -> EngineDiedError:
    error = EngineDiedError(f"the decode thread died of {describe(cause)}; create a new engine")
    error.__cause__ = cause
    return error


def _leave(shared: _Shared[L]) -> None:
    """Ask a thread whose handle is gone to stop; a forked child has no such thread."""
    if shared.pid == os.getpid():
        shared.stopping = True
        shared.inbox.put(Stop())
        shared.pauses.end()


_live: dict[threading.Thread, _Shared] = {}


def _exit() -> None:
    """End and join every decode thread before the interpreter destroys its modules."""
    threads = list(_live.items())
    for _, shared in threads:
        _leave(shared)
    for thread, _ in threads:
        thread.join(_EXIT_SECONDS)


atexit.register(_exit)
