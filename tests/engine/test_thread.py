"""The decode thread: commands in, turns between them, and every way it ends."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen.engine import thread as engine_thread
from asyncgen.engine.commands import Stop
from asyncgen.engine.core import Engine
from asyncgen.engine.thread import DecodeThread
from asyncgen.errors import EngineClosedError, EngineDiedError, ModelLoadError
from tests.doubles.engine import decode_threads, join_decode_threads, no_thread_left
from tests.doubles.models import PATIENCE
from tests.engine.making import request_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.requests.request import Request
    from tests.doubles.sinks import RecordingSink

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio


class FakeEngine(Engine):
    """Records its calls; each step waits for the test."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.requests: list[Request] = []
        self.in_step = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.raises: BaseException | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def add(self, request: Request) -> None:
        self.log.append("add")
        self.requests.append(request)

    def abort(self, request: Request, reason: str = "cancelled") -> None:
        self.log.append("abort")
        if request in self.requests:
            self.requests.remove(request)

    def step(self) -> None:
        self.log.append("step")
        self.in_step.release()
        assert self.go.acquire(timeout=PATIENCE)
        if self.raises is not None:
            raise self.raises

    def abort_all(self, reason: str) -> None:
        self.log.append(f"abort all: {reason}")
        self.requests.clear()

    def evict(self, request_id: str) -> None:
        self.log.append(f"evict {request_id}")

    def fail_all(self, error: BaseException) -> None:
        self.log.append("fail all")
        for request in self.requests:
            request.sink.put_nowait(error)
        self.requests.clear()


def thread_over(engine: FakeEngine) -> DecodeThread[str]:
    """A decode thread that is not started."""
    return DecodeThread(lambda is_closing: (engine, "loaded"), name="asyncgen-decode")


async def test_commands_are_heeded_between_steps() -> None:
    engine = FakeEngine()
    thread = thread_over(engine)
    assert not thread.is_alive
    thread.start()
    thread.start()
    assert await thread.wait_ready() == thread.loaded == "loaded"
    assert thread.is_alive
    first, second = request_for()[0], request_for()[0]
    thread.post(first)
    assert engine.in_step.acquire(timeout=PATIENCE)
    thread.post(second)
    thread.cancel(first)
    assert first.cancel.is_set()
    engine.go.release()
    assert engine.in_step.acquire(timeout=PATIENCE)
    thread.cancel(second)
    engine.go.release()
    thread.stop()
    thread.stop()
    await thread.wait_finished()
    assert engine.log == ["add", "step", "add", "abort", "step", "abort", "abort all: aborted"]
    assert not thread.is_alive
    assert thread.loaded is None
    assert not decode_threads()


async def test_an_idle_thread_does_nothing() -> None:
    engine = FakeEngine()
    thread = thread_over(engine)
    thread.start()
    await thread.wait_ready()
    thread.stop()
    await thread.wait_finished()
    assert engine.log == ["abort all: aborted"]


async def test_a_post_after_the_stop_is_refused() -> None:
    thread = thread_over(FakeEngine())
    thread.start()
    await thread.wait_ready()
    thread.stop()
    uses: list[Callable[[], None]] = [
        lambda: thread.post(request_for()[0]),
        thread.start,
        thread.require_open,
    ]
    for use in uses:
        with pytest.raises(EngineClosedError, match="create a new"):
            use()
    await thread.wait_finished()
    thread.cancel(request_for()[0])  # for whoever still holds a stream


async def test_requests_posted_after_the_stop_are_answered() -> None:
    engine = FakeEngine()
    thread = thread_over(engine)
    thread.start()
    await thread.wait_ready()
    (first, _), (late, sink) = request_for(), request_for()
    thread.post(first)
    assert engine.in_step.acquire(timeout=PATIENCE)
    thread._shared.inbox.put(Stop())  # as if it was posted between the check and the post
    thread.post(late)
    engine.go.release()
    await thread.wait_finished()
    [error] = sink.items
    assert isinstance(error, EngineClosedError)
    thread._shared.stopping = False  # as at the check of a post that comes still later
    with pytest.raises(EngineClosedError):
        thread.post(late)
    assert not thread._shared.posted


async def test_a_request_whose_taking_ends_the_engine_is_answered() -> None:
    """As where a tracer raises, or there is no memory, between the inbox and the engine."""

    class Full(FakeEngine):
        def add(self, request: Request) -> None:
            raise MemoryError

    thread = thread_over(Full())
    thread.start()
    await thread.wait_ready()
    request, sink = request_for()
    thread.post(request)
    await thread.wait_finished()
    [error] = sink.items
    assert isinstance(error, EngineDiedError) and isinstance(error.__cause__, MemoryError)
    assert not thread._shared.posted


async def test_a_thread_that_the_system_does_not_give_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    thread = thread_over(FakeEngine())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.start()
    assert thread._thread not in engine_thread._live  # the exit of the interpreter joins those
    thread.start()
    assert await thread.wait_ready() == "loaded"
    thread.stop()
    await thread.wait_finished()


async def test_a_stop_before_the_start() -> None:
    thread = thread_over(FakeEngine())
    thread.stop()
    await thread.wait_finished()
    with pytest.raises(EngineClosedError):
        await thread.wait_ready()
    with pytest.raises(EngineClosedError):
        thread.start()


async def test_a_load_that_fails_keeps_its_exception() -> None:
    def load(is_closing: Callable[[], bool]) -> Any:
        raise ModelLoadError("no weights")

    thread: DecodeThread[str] = DecodeThread(load, name="asyncgen-decode")
    thread.start()
    depths = []
    for _ in range(3):
        with pytest.raises(ModelLoadError, match="no weights") as caught:
            await thread.wait_ready()
        depths.append(depth(caught.value))
    assert len(set(depths)) == 1  # the traceback is that of the load, however often it is raised
    with pytest.raises(ModelLoadError):
        thread.post(request_for()[0])
    await thread.wait_finished()


def depth(error: BaseException) -> int:
    """Frames of a traceback."""
    frames, trace = 0, error.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    return frames


async def test_a_load_that_wants_to_leave_the_interpreter_does_not() -> None:
    def load(is_closing: Callable[[], bool]) -> Any:
        sys.exit("no")

    thread: DecodeThread[str] = DecodeThread(load, name="asyncgen-decode")
    thread.start()
    with pytest.raises(EngineDiedError, match="SystemExit") as caught:
        await thread.wait_ready()
    assert isinstance(caught.value.__cause__, SystemExit)
    await thread.wait_finished()


async def test_death_reaches_everybody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="asyncgen.engine")
    engine = FakeEngine()
    thread = thread_over(engine)
    thread.start()
    await thread.wait_ready()
    (running, sink), (late, late_sink) = request_for(), request_for()
    thread.post(running)
    assert engine.in_step.acquire(timeout=PATIENCE)
    thread.post(late)
    engine.raises = KeyboardInterrupt("now")
    engine.go.release()
    await thread.wait_finished()
    for recorded in (sink, late_sink):
        [error] = recorded.items
        assert isinstance(error, EngineDiedError)
        assert error.__cause__ is engine.raises
    with pytest.raises(EngineDiedError, match="KeyboardInterrupt"):
        thread.post(request_for()[0])
    assert "decode thread died" in caplog.text


async def test_death_reaches_its_readers_if_logging_raises() -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit

    engine, handler, log = FakeEngine(), Raising(), logging.getLogger("asyncgen.engine")
    thread = thread_over(engine)
    thread.start()
    await thread.wait_ready()
    request, sink = request_for()
    thread.post(request)
    assert engine.in_step.acquire(timeout=PATIENCE)
    engine.raises = ZeroDivisionError()
    log.addHandler(handler)
    try:
        engine.go.release()
        await thread.wait_finished()
    finally:
        log.removeHandler(handler)
    assert [type(item) for item in sink.items] == [EngineDiedError]


async def test_a_reader_of_a_dead_engine_finds_it_dead() -> None:
    found: list[bool] = []

    class Dying(FakeEngine):
        def fail_all(self, error: BaseException) -> None:
            # What a reader may do at once, in its own thread.
            with pytest.raises(EngineDiedError):
                thread.require_open()
            found.append(thread.is_alive)
            super().fail_all(error)

    engine = Dying()
    thread = thread_over(engine)
    thread.start()
    await thread.wait_ready()
    thread.post(request_for()[0])
    assert engine.in_step.acquire(timeout=PATIENCE)
    engine.raises = ZeroDivisionError()
    engine.go.release()
    await thread.wait_finished()
    assert found == [False]


async def test_load_sees_that_the_thread_is_closing() -> None:
    seen = threading.Event()

    def load(is_closing: Callable[[], bool]) -> Any:
        while not is_closing():
            seen.set()
        return FakeEngine(), "loaded"

    thread: DecodeThread[str] = DecodeThread(load, name="asyncgen-decode")
    thread.start()
    assert seen.wait(PATIENCE)
    thread.stop()
    await thread.wait_finished()


async def test_a_dropped_handle_ends_the_thread() -> None:
    engine = FakeEngine()
    thread: DecodeThread[str] | None = thread_over(engine)
    assert thread is not None
    thread.start()
    await thread.wait_ready()
    gone = weakref.ref(thread)
    thread = None
    gc.collect()
    assert gone() is None
    join_decode_threads()
    assert engine.log == ["abort all: aborted"]


async def test_waiting_may_be_cancelled() -> None:
    go_on = threading.Event()

    def load(is_closing: Callable[[], bool]) -> Any:
        assert go_on.wait(PATIENCE)
        return FakeEngine(), "loaded"

    thread: DecodeThread[str] = DecodeThread(load, name="asyncgen-decode")
    thread.start()
    with anyio.move_on_after(0.01) as scope:
        await thread.wait_ready()
    assert scope.cancelled_caught
    go_on.set()
    assert await thread.wait_ready() == "loaded"
    thread.stop()
    await thread.wait_finished()


async def test_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = thread_over(FakeEngine())
    thread.start()
    await thread.wait_ready()
    uses: list[Callable[[], None]] = [
        lambda: thread.post(request_for()[0]),
        thread.start,
        thread.require_open,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert not thread.is_alive
        for use in uses:
            with pytest.raises(EngineClosedError, match="fork"):
                use()
        thread.stop()
        await thread.wait_finished()
    assert thread.is_alive
    thread.stop()
    await thread.wait_finished()


def test_many_threads_post_and_cancel_while_it_ends() -> None:
    """Every posted request is answered or refused, whatever the moment."""

    class Quick(FakeEngine):
        def step(self) -> None:
            self.requests.pop().sink.put_nowait(ValueError("served"))

        def abort_all(self, reason: str) -> None:
            for request in self.requests:
                request.sink.put_nowait(ValueError(reason))

    for _ in range(20):
        thread = thread_over(Quick())
        thread.start()
        refused: list[RecordingSink] = []
        posted: list[RecordingSink] = []
        made = [request_for() for _ in range(8)]

        def post(
            start: int,
            thread: DecodeThread[str] = thread,
            made: list[tuple[Request, RecordingSink]] = made,
            posted: list[RecordingSink] = posted,
            refused: list[RecordingSink] = refused,
        ) -> None:
            for request, sink in made[start::2]:
                try:
                    thread.post(request)
                except EngineClosedError:
                    refused.append(sink)
                else:
                    posted.append(sink)

        workers = [threading.Thread(target=post, args=(start,)) for start in (0, 1)]
        for worker in workers:
            worker.start()
        thread.stop()
        for worker in workers:
            worker.join()
        join_decode_threads()
        assert len(posted) + len(refused) == 8
        assert all(len(sink.items) == 1 for sink in posted)


# For callers that own a thread and no loop.


async def test_a_drain_runs_what_was_posted_to_its_end() -> None:
    engine = FakeEngine()
    thread = thread_over(engine)
    thread.start()
    assert thread.wait_ready_in_thread() == "loaded"
    over = threading.Event()
    thread.call_when_finished(over.set)
    request, _ = request_for()
    thread.post(request)
    assert engine.in_step.acquire(timeout=PATIENCE)
    thread.evict("other")
    thread.stop(drain=True)
    with pytest.raises(EngineClosedError):
        thread.post(request_for()[0])
    assert not thread.join(0) and not thread.is_over
    engine.go.release()
    assert engine.in_step.acquire(timeout=PATIENCE)
    assert "evict other" in engine.log
    engine.requests.clear()
    engine.go.release()
    assert thread.join(PATIENCE) and over.is_set() and thread.is_over
    assert thread.death is None and not any("abort" in entry for entry in engine.log)


async def test_a_hard_stop_cuts_a_drain_short() -> None:
    engine = FakeEngine()
    thread = thread_over(engine)
    thread.start()
    thread.post(request_for()[0])
    assert engine.in_step.acquire(timeout=PATIENCE)
    thread.stop(drain=True)
    thread.stop()
    engine.go.release()
    assert thread.join(PATIENCE)
    assert engine.log[-1] == "abort all: aborted"


async def test_a_load_that_fails_is_raised_to_a_thread_that_waits() -> None:
    def load(is_closing: Callable[[], bool]) -> tuple[FakeEngine, str]:
        raise ZeroDivisionError

    thread: DecodeThread[str] = DecodeThread(load, name="asyncgen-decode")
    assert thread.join(0)  # it never started
    thread.start()
    with pytest.raises(ZeroDivisionError):
        thread.wait_ready_in_thread()
    assert thread.join(PATIENCE)
    assert isinstance(thread.death, ZeroDivisionError)


async def test_is_current_is_true_only_on_the_decode_thread() -> None:
    asked: list[bool] = []

    def load(is_closing: Callable[[], bool]) -> tuple[FakeEngine, str]:
        asked.append(thread.is_current)
        return FakeEngine(), "loaded"

    thread: DecodeThread[str] = DecodeThread(load, name="asyncgen-decode")
    thread.start()
    thread.wait_ready_in_thread()
    assert asked == [True] and not thread.is_current
    thread.stop()
    assert thread.join(PATIENCE)
