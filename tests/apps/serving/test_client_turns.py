"""Clients take turns on worker threads, however many calls one has."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from asyncgen_apps.serving.client_turns import ClientTurns, TurnsOnLoop
from tests.doubles.models import PATIENCE

pytestmark = pytest.mark.anyio


async def test_a_second_client_is_next() -> None:
    turns, order, all_wait = ClientTurns(1), list[str](), threading.Event()

    def call(name: str) -> None:
        assert all_wait.wait(PATIENCE)
        order.append(name)

    async with anyio.create_task_group() as group:
        for name in [*["a"] * 20, "b", "b", "c"]:
            group.start_soon(turns.run, name, call, name)
            await anyio.wait_all_tasks_blocked()
        all_wait.set()
    assert len(order) == 23
    assert order.index("b") < 4 and order.index("c") < 5
    assert not len(turns._doors), "nobody waits, so nothing is kept"


async def test_who_is_cancelled_gives_its_turn_on() -> None:
    turns, order = ClientTurns(1), list[str]()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as inner:
                    for _ in range(5):
                        inner.start_soon(turns.run, "a", anyio.from_thread.check_cancelled)
                    await anyio.lowlevel.checkpoint()
                    scope.cancel()
            group.start_soon(turns.run, "a", order.append, "a")
    assert order == ["a"]


async def test_calls_of_those_who_have_left_are_no_more_than_threads() -> None:
    """A client that comes and goes would else have as many threads as it likes."""
    turns, running, most, go_on = ClientTurns(2), list[str](), list[int](), threading.Event()
    began = anyio.Semaphore(0)

    def call(name: str) -> None:
        running.append(name)
        most.append(len(running))
        anyio.from_thread.run_sync(began.release)
        assert go_on.wait(PATIENCE)
        running.remove(name)

    async with anyio.create_task_group() as group:
        for name in "abab":
            group.start_soon(turns.run, name, call, name)
        for _ in range(2):
            await began.acquire()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as later:
                for name in "ab":
                    later.start_soon(turns.run, name, call, name)
                await anyio.wait_all_tasks_blocked()
                go_on.set()
    assert len(most) == 4 and max(most) == 2


async def test_what_it_raises_is_raised() -> None:
    turns = ClientTurns(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="invalid literal"):
            await turns.run("a", int, "x")


async def test_between_two_calls_the_loop_does_other_things() -> None:
    """And they are of two clients, as long as two wait."""
    turns, called, seen = TurnsOnLoop(), list[str](), 0
    async with anyio.create_task_group() as group:
        for name in [*["a"] * 20, "b", "b", "c"]:
            group.start_soon(turns.run, name, called.append, name)
        while len(called) < 23:
            await anyio.lowlevel.checkpoint()
            assert len(called) - seen <= 1
            seen = len(called)
    assert {"a", "b", "c"} == set(called[:4])
    assert not len(turns._doors)
    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            await turns.run("a", int, "x")
