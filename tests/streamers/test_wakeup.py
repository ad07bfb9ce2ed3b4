"""Threads wake loops without waiting for them; nothing is lost, and nothing is scheduled twice."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
import uvloop
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from streamers import wakeup
from streamers.wakeup import LoopBell, Mailbox
from tests.doubles.interrupts import Interrupter

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


class Counted(LoopBell):
    """A bell of its own that counts the wake-ups it schedules."""

    def __init__(self) -> None:
        super().__init__(anyio.lowlevel.current_token().native_token)
        self.scheduled = 0
        schedule = self._schedule

        def counting(callback: Callable[[], None]) -> None:
            self.scheduled += 1
            schedule(callback)

        self._schedule = counting


def in_threads(*jobs: Callable[[], object]) -> None:
    """Run jobs in threads and join them, blocking the caller."""
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def test_a_loop_has_one_bell() -> None:
    bell = LoopBell.current()
    assert LoopBell.current() is bell
    found: list[LoopBell] = []

    async def other() -> None:
        found.append(LoopBell.current())

    await run_sync(lambda: anyio.run(other))
    assert found[0] is not bell


def test_without_a_loop_there_is_no_bell() -> None:
    with pytest.raises(RuntimeError):
        LoopBell.current()


async def test_rings_while_the_loop_is_busy_are_one_wake_up() -> None:
    bell = Counted()
    rung: list[int] = []
    done = anyio.Event()

    def job(start: int) -> None:
        for n in range(start, start + 2000):
            assert bell.ring(lambda n=n: rung.append(n))  # type: ignore[misc]

    in_threads(lambda: job(0), lambda: job(2000))  # the loop stands still meanwhile
    assert bell.scheduled == 1
    assert bell.ring(done.set)
    await done.wait()
    assert sorted(rung) == list(range(4000))
    assert [n for n in rung if n < 2000] == list(range(2000))
    assert bell.scheduled == 1


async def test_a_ring_after_the_wake_up_schedules_again() -> None:
    bell = Counted()
    for n in range(1, 4):
        event = anyio.Event()
        bell.ring(event.set)
        await event.wait()
        assert bell.scheduled == n


async def test_many_rings_leave_the_loop_its_turns() -> None:
    bell = LoopBell.current()
    rung: list[int] = []
    turn = 0
    in_threads(lambda: [bell.ring(lambda: rung.append(turn)) for _ in range(500)])
    while len(rung) < 500:
        await checkpoint()
        turn += 1
    assert rung == sorted(rung)
    # Trio takes its tasks in any order: two of its turns may follow one another.
    assert max(Counter(rung).values()) <= 2 * 64


async def test_gathered_rings_are_one_wake_up_at_the_end() -> None:
    bell = Counted()
    rung: list[int] = []
    woken_early: list[int] = []
    done = anyio.Event()

    def job() -> None:
        with LoopBell.together():
            for n in range(50):
                with LoopBell.together():  # the outer block decides
                    assert bell.ring(lambda n=n: rung.append(n))  # type: ignore[misc]
                woken_early.append(bell.scheduled)
            bell.ring(done.set)
        assert bell.scheduled == 1

    await run_sync(job)
    await done.wait()
    assert not any(woken_early)
    assert rung == list(range(50))
    event = anyio.Event()
    bell.ring(event.set)  # nothing is gathered any more
    assert bell.scheduled == 2
    await event.wait()


async def test_another_threads_ring_takes_the_gathered_ones_along() -> None:
    bell = Counted()
    rung: list[str] = []
    done = anyio.Event()

    def job() -> None:
        with LoopBell.together():
            bell.ring(lambda: rung.append("gathered"))
            in_threads(lambda: bell.ring(done.set))
            assert bell.scheduled == 1

    await run_sync(job)
    await done.wait()
    assert rung == ["gathered"]
    assert bell.scheduled == 1


async def test_an_error_does_not_swallow_gathered_rings() -> None:
    bell, event = LoopBell.current(), anyio.Event()

    def job() -> None:
        with pytest.raises(KeyError), LoopBell.together():
            bell.ring(event.set)
            raise KeyError

    await run_sync(job)
    await event.wait()


def test_a_wake_that_raises_swallows_no_other() -> None:
    """As where Ctrl-C, which asyncio makes a cancellation, comes in the midst of one."""

    async def main() -> None:
        bell, woken = LoopBell.current(), asyncio.Event()
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: errors.append(told))
        wakes: list[Callable[[], object]] = [{}.popitem, woken.set]
        in_threads(lambda: [bell.ring(wake) for wake in wakes])
        await asyncio.wait_for(woken.wait(), 10)
        assert isinstance(errors[0]["exception"], KeyError)

    asyncio.run(main())


def test_a_wait_makes_up_for_a_wake_up_that_ctrl_c_took() -> None:
    """As where it comes while asyncio takes one out of its queue."""

    async def main() -> None:
        bell, mailbox = LoopBell.current(), Mailbox[int]()
        schedule, bell._schedule = bell._schedule, lambda wake: None
        assert bell.ring(lambda: None)
        bell._schedule = schedule
        threading.Timer(0.01, mailbox.put_nowait, [1]).start()
        assert await asyncio.wait_for(read(mailbox, 1), 10) == [1]

    asyncio.run(main())


def test_ctrl_c_in_the_midst_of_a_wait_leaves_nobody_to_wake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def interrupted(event: Any) -> None:
        event._tasks.add(trio.lowlevel.current_task())  # as `wait` does before it waits
        raise KeyboardInterrupt

    async def wait(bell: LoopBell, wakes: list[Callable[[], object]]) -> None:
        wake, waiter = bell.waiter()
        wakes.append(wake)
        with pytest.raises(KeyboardInterrupt):
            await bell.await_waiter(waiter, wake, None)

    async def main() -> None:
        wakes: list[Callable[[], object]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, LoopBell.current(), wakes)
            await trio.testing.wait_all_tasks_blocked()
        wakes.pop()()
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(trio.Event, "wait", interrupted)
    trio.run(main)


def test_ctrl_c_anywhere_in_a_limited_wait_leaves_trio_whole() -> None:
    @trio.lowlevel.disable_ki_protection
    async def wait(interrupter: Interrupter) -> int:
        bell = LoopBell.current()
        wake, waiter = bell.waiter()
        with interrupter.armed():
            await bell.await_waiter(waiter, wake, 0.0)
            return interrupter.num_places

    @trio.lowlevel.enable_ki_protection  # it would corrupt a nursery that is left
    async def main(interrupter: Interrupter) -> int:
        async with trio.open_nursery():
            return await wait(interrupter)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # nor may it come in destructors of what was left before
    try:
        counter = Interrupter(0, in_loop=True)
        for place in range(1, trio.run(main, counter)):
            error: BaseException | None = None
            try:
                trio.run(main, Interrupter(place, in_loop=True))
            except BaseException as caught:
                error = caught
            while isinstance(error, BaseExceptionGroup):
                (error,) = error.exceptions
            assert error is None or isinstance(error, KeyboardInterrupt), place
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)


def test_a_loop_that_closes_before_gathered_rings_sound() -> None:
    loop = asyncio.new_event_loop()
    bell = LoopBell(loop)
    with LoopBell.together():
        assert bell.ring(lambda: None)
        loop.close()
    assert bell.gone
    with LoopBell.together():
        assert not bell.ring(lambda: None)


@pytest.mark.parametrize("run", [asyncio.run, trio.run, uvloop.run])
def test_ring_reports_an_ended_loop(run: Callable[[Any], Any]) -> None:
    bells: list[LoopBell] = []

    async def main() -> None:
        bells.append(LoopBell.current())

    run(main if run is trio.run else main())
    [bell] = bells
    assert not bell.ring(lambda: None)
    assert bell.gone
    assert not bell.ring(lambda: None)


def test_ring_reports_a_loop_closed_during_a_wake_up() -> None:
    loop = asyncio.new_event_loop()
    bell = LoopBell(loop)
    assert bell.ring(lambda: None)
    loop.close()
    assert not bell.ring(lambda: None)


@pytest.mark.parametrize("run", [asyncio.run, trio.run, uvloop.run])
def test_bells_keep_no_loop_alive(run: Callable[[Any], Any]) -> None:
    loops: list[weakref.ref[object]] = []

    async def main() -> None:
        loop = anyio.lowlevel.current_token().native_token
        LoopBell.current().ring(lambda: None)
        loops.append(weakref.ref(loop))

    run(main if run is trio.run else main())
    gc.collect()
    assert loops[0]() is None


async def read(mailbox: Mailbox[int], count: int) -> list[int]:
    """Read so many items."""
    items: list[int] = []
    while len(items) < count:
        await mailbox.wait()
        items += mailbox.drain()
    return items


async def test_items_of_many_threads_arrive_complete_and_in_order() -> None:
    mailbox: Mailbox[int] = Mailbox()

    def job(start: int) -> None:
        for n in range(start, start + 5000):
            assert mailbox.put_nowait(n)

    threads = [threading.Thread(target=job, args=(start,)) for start in (0, 5000, 10000)]
    for thread in threads:
        thread.start()
    items = await read(mailbox, 15000)
    for thread in threads:
        thread.join()
    assert sorted(items) == list(range(15000))
    for start in (0, 5000, 10000):
        own = [n for n in items if start <= n < start + 5000]
        assert own == sorted(own)
    assert len(mailbox) == 0


async def test_a_waiting_reader_is_rung_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = Counted()
    monkeypatch.setattr(LoopBell, "current", lambda: bell)
    mailbox: Mailbox[int] = Mailbox()
    got: list[int] = []

    async def reader() -> None:
        await mailbox.wait()
        got.extend(mailbox.drain())

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        await anyio.wait_all_tasks_blocked()
        in_threads(lambda: [mailbox.put_nowait(n) for n in range(15)])
        assert bell.scheduled == 1
    assert got == list(range(15))


async def paced(mailbox: Mailbox[int]) -> None:
    """Have its reader woken for two items, one right after the other."""
    for number in (1, 2):
        async with anyio.create_task_group() as group:
            group.start_soon(mailbox.wait)
            await anyio.wait_all_tasks_blocked()
            in_threads(lambda number=number: mailbox.put_nowait(number))  # type: ignore[misc]
        assert mailbox.drain() == [number]


async def test_a_paced_reader_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = Counted()
    monkeypatch.setattr(LoopBell, "current", lambda: bell)
    limits: list[float | None] = []
    limited = bell.await_waiter

    async def spied(waiter: Any, wake: Callable[[], object], most: float | None) -> None:
        limits.append(most)
        await limited(waiter, wake, most)

    monkeypatch.setattr(bell, "await_waiter", spied)
    monkeypatch.setattr(wakeup, "monotonic", lambda: 7.0)  # the clock stands still
    mailbox: Mailbox[int] = Mailbox(pace=0.2)
    await paced(mailbox)
    assert bell.scheduled == 2
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        in_threads(lambda: [mailbox.put_nowait(number) for number in (3, 4)])
        assert bell.scheduled == 2
    assert mailbox.drain() == [3, 4]
    assert bell.scheduled == 2
    assert limits == [None, None, pytest.approx(0.2)]


async def test_a_paced_reader_comes_at_once_for_urgent_items() -> None:
    mailbox: Mailbox[int] = Mailbox(pace=1000.0, is_urgent=lambda item: item == 5)
    await paced(mailbox)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(mailbox.wait)
            await anyio.wait_all_tasks_blocked()
            in_threads(lambda: [mailbox.put_nowait(number) for number in (3, 4)])
            await anyio.wait_all_tasks_blocked()
            assert len(mailbox) == 2  # and its reader sits
            assert mailbox._wake is not None
            in_threads(lambda: mailbox.put_nowait(5))
    assert mailbox.drain() == [3, 4, 5]


async def test_a_paced_reader_is_woken_as_its_mailbox_closes() -> None:
    mailbox: Mailbox[int] = Mailbox(pace=1000.0)
    await paced(mailbox)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(mailbox.wait)
            await anyio.wait_all_tasks_blocked()
            in_threads(mailbox.close)


@pytest.mark.parametrize("is_paced", [False, True])
async def test_a_reader_comes_back_though_another_took_what_it_was_rung_for(
    is_paced: bool,
) -> None:
    mailbox: Mailbox[int] = Mailbox(pace=1000.0, is_urgent=lambda item: item == 3)
    if is_paced:
        await paced(mailbox)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(mailbox.wait)
            await anyio.wait_all_tasks_blocked()
            assert mailbox._urgent_only is is_paced
            mailbox.put_nowait(3)
            assert mailbox.drain() == [3]


async def test_a_paced_reader_can_be_cancelled_and_loses_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox(pace=1000.0, is_urgent=lambda item: item == 4)
    await paced(mailbox)
    with anyio.move_on_after(0.01):
        await mailbox.wait()
    assert mailbox.put_nowait(3)
    assert await read(mailbox, 1) == [3]
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        in_threads(lambda: mailbox.put_nowait(4))
    assert mailbox.drain() == [4]


async def test_a_paced_reader_of_a_slow_sender_is_rung_for_again() -> None:
    mailbox: Mailbox[int] = Mailbox(pace=0.01)
    assert await read(mailbox_after(mailbox, [1, 2]), 2) == [1, 2]
    mailbox._is_paced = True
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.wait)
        while mailbox._wake is None or mailbox._urgent_only:  # until it waits for any item again
            await checkpoint()
        in_threads(lambda: mailbox.put_nowait(3))
    assert mailbox.drain() == [3]


async def test_a_paced_reader_that_is_dropped_is_gone_at_once() -> None:
    class Reader:
        async def read(self) -> None:
            await mailbox.wait()

    mailbox: Mailbox[int] = Mailbox(pace=0.01)
    assert await read(mailbox_after(mailbox, [1]), 1) == [1]
    mailbox._is_paced, mailbox._woken_at = True, time.monotonic()
    reader = Reader()
    gone = weakref.ref(reader)
    gc.disable()
    try:
        async with anyio.create_task_group() as group:

            async def drop() -> None:
                nonlocal reader
                await reader.read()
                del reader
                assert gone() is None

            group.start_soon(drop)
            await checkpoint()
            mailbox.put_nowait(2)
    finally:
        gc.enable()


def mailbox_after(mailbox: Mailbox[int], items: list[int]) -> Mailbox[int]:
    """The mailbox with items put by another thread."""
    in_threads(lambda: [mailbox.put_nowait(item) for item in items])
    return mailbox


async def test_many_mailboxes_of_a_loop_share_a_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bell = Counted()
    monkeypatch.setattr(LoopBell, "current", lambda: bell)
    mailboxes: list[Mailbox[int]] = [Mailbox() for _ in range(50)]
    async with anyio.create_task_group() as group:
        for mailbox in mailboxes:
            group.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        in_threads(lambda: [mailbox.put_nowait(1) for mailbox in mailboxes])
        assert bell.scheduled == 1


async def test_a_cancelled_wait_loses_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for n in range(20):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await mailbox.wait()
        mailbox.put_nowait(n)
        assert await read(mailbox, 1) == [n]


async def test_a_reader_that_is_rung_for_and_cancelled_loses_nothing() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        in_threads(lambda: mailbox.put_nowait(1))  # the bell has not been answered yet
        group.cancel_scope.cancel()
    await anyio.wait_all_tasks_blocked()
    assert await read(mailbox, 1) == [1]


@pytest.mark.parametrize("first", ["asyncio", "trio"])
@pytest.mark.parametrize("second", ["asyncio", "trio"])
def test_a_mailbox_may_be_read_in_another_loop(first: str, second: str) -> None:
    async def build() -> Mailbox[int]:
        return Mailbox()

    async def wait(mailbox: Mailbox[int]) -> list[int]:
        async with anyio.create_task_group() as group:
            group.start_soon(mailbox.wait)
            await anyio.wait_all_tasks_blocked()
            in_threads(lambda: mailbox.put_nowait(1))
        return mailbox.drain()

    assert anyio.run(wait, anyio.run(build, backend=first), backend=second) == [1]


def test_guest_of_a_loop_waits_without_the_loop() -> None:
    found: list[list[int]] = []

    async def host() -> None:
        mailbox: Mailbox[int] = Mailbox()
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        async def guest() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(mailbox.wait)
                await anyio.wait_all_tasks_blocked()
                in_threads(lambda: mailbox.put_nowait(1))
            found.append(mailbox.drain())

        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda _: done.set(),
        )
        await done.wait()

    asyncio.run(host())
    assert found == [[1]]


async def test_only_one_task_may_wait() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await mailbox.wait()
        mailbox.put_nowait(1)


async def test_close_wakes_the_reader_and_refuses_the_rest() -> None:
    mailbox: Mailbox[int] = Mailbox()
    async with anyio.create_task_group() as group:
        group.start_soon(mailbox.wait)
        await anyio.wait_all_tasks_blocked()
        await run_sync(mailbox.close)
    assert mailbox.closed
    assert not mailbox.put_nowait(1)
    assert mailbox.drain() == []
    await mailbox.wait()


async def test_an_abandoned_mailbox_refuses_items() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.abandon()
    assert not mailbox.put_nowait(1)


async def test_a_mailbox_built_outside_a_loop_is_bound_by_the_first_wait() -> None:
    mailbox: Mailbox[int] = await run_sync(Mailbox)
    assert mailbox.put_nowait(1)
    assert await read(mailbox, 1) == [1]
    async with anyio.create_task_group() as group:
        group.start_soon(read, mailbox, 1)
        await anyio.wait_all_tasks_blocked()
        await run_sync(mailbox.put_nowait, 2)


@pytest.mark.parametrize("run", [asyncio.run, trio.run, uvloop.run])
def test_a_loop_that_ended_closes_the_mailbox(run: Callable[[Any], Any]) -> None:
    gone: list[str] = []
    mailboxes: list[Mailbox[int]] = []

    async def main() -> None:
        mailboxes.append(Mailbox(lambda: gone.append(threading.current_thread().name)))
        await checkpoint()

    run(main if run is trio.run else main())
    [mailbox] = mailboxes
    sent = [mailbox.put_nowait(n) for n in range(40)]
    assert sent.index(False) < 16  # noticed soon, though nobody waits
    assert mailbox.closed
    assert gone == [threading.current_thread().name]


def test_several_loops_in_several_threads() -> None:
    results: dict[int, list[int]] = {}
    ready = threading.Barrier(5)
    mailboxes: dict[int, Mailbox[int]] = {}

    async def main(key: int) -> None:
        mailboxes[key] = Mailbox()
        ready.wait()
        results[key] = await read(mailboxes[key], 3000)

    def start(key: int) -> None:
        anyio.run(main, key, backend="trio" if key % 2 else "asyncio")

    threads = [threading.Thread(target=start, args=(key,)) for key in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    for n in range(3000):
        for mailbox in mailboxes.values():
            mailbox.put_nowait(n)
    for thread in threads:
        thread.join()
    assert results == {key: list(range(3000)) for key in range(4)}
