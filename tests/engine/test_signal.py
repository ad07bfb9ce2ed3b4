"""A signal wakes everybody, in every loop, once."""

from __future__ import annotations

import threading

import anyio
import pytest

from asyncgen.engine.thread import Signal
from tests.doubles.engine import in_thread
from tests.doubles.models import PATIENCE

pytestmark = pytest.mark.anyio


async def test_all_calls_of_a_loop_are_woken() -> None:
    signal = Signal()
    assert not signal.is_set()
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(signal.wait)
        await anyio.wait_all_tasks_blocked()
        await in_thread(signal.set)
    assert signal.is_set()
    signal.set()
    await signal.wait()


async def test_a_cancelled_wait_leaves_nothing() -> None:
    signal = Signal()
    with anyio.move_on_after(0.01):
        await signal.wait()
    assert signal._calls == []
    signal.set()


def test_several_loops() -> None:
    signal = Signal()
    ready = threading.Barrier(4)

    async def wait() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(signal.wait)
            await anyio.wait_all_tasks_blocked()
            ready.wait()

    threads = [
        threading.Thread(target=lambda backend=backend: anyio.run(wait, backend=backend))
        for backend in ("asyncio", "trio", "asyncio")
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    signal.set()
    for thread in threads:
        thread.join()


def test_a_loop_that_ended_is_passed_over() -> None:
    signal = Signal()

    async def leave() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(signal.wait)
            await anyio.wait_all_tasks_blocked()
            # As if the loop had died with the waiter in the list.
            waiters = list(signal._calls)
            group.cancel_scope.cancel()
        signal._calls.extend(waiters)

    anyio.run(leave)
    signal.set()
    assert signal.is_set()


def test_a_thread_waits() -> None:
    signal = Signal()
    assert not signal.wait_in_thread(0.01)
    assert signal._calls == []
    called: list[str] = []
    signal.call(lambda: called.append("later"))
    thread = threading.Thread(target=signal.set)
    thread.start()
    assert signal.wait_in_thread(PATIENCE)
    thread.join()
    signal.call(lambda: called.append("at once"))
    assert called == ["later", "at once"]
    assert signal.wait_in_thread(0)
