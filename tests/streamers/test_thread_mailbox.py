"""A thread that waits is woken for what it waits for, and never sleeps for ever."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from streamers.thread_mailbox import ThreadMailbox
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0
FOREVER = 10_000.0


def waiting(mailbox: ThreadMailbox[int], *, urgent_only: bool) -> threading.Thread:
    """A thread that has begun to wait."""
    thread = threading.Thread(target=mailbox.wait, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while mailbox._bell is None or mailbox._bell[1] is not urgent_only:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return thread


def comes_back(thread: threading.Thread) -> bool:
    """Tell whether it ends."""
    thread.join(PATIENCE)
    return not thread.is_alive()


def made(*, paced: bool, pace: float = FOREVER) -> ThreadMailbox[int]:
    """A mailbox whose reader was woken twice, one right after the other, or never; 9 is urgent."""
    mailbox: ThreadMailbox[int] = ThreadMailbox(pace=pace, is_urgent=lambda item: item == 9)
    for number in (1, 2) if paced else ():
        thread = waiting(mailbox, urgent_only=False)
        mailbox.put_nowait(number)
        assert comes_back(thread)
        assert mailbox.drain() == [number]
    return mailbox


def test_a_reader_comes_for_any_item_and_a_paced_one_for_urgent_items() -> None:
    mailbox = made(paced=False)
    thread = waiting(mailbox, urgent_only=False)
    mailbox.put_nowait(1)
    assert comes_back(thread)
    assert mailbox.drain() == [1]
    mailbox = made(paced=True)
    thread = waiting(mailbox, urgent_only=True)
    mailbox.put_nowait(3)
    thread.join(0.05)
    assert thread.is_alive()
    mailbox.put_nowait(9)
    assert comes_back(thread)
    assert mailbox.drain() == [3, 9]


def test_a_paced_reader_comes_back_by_itself() -> None:
    mailbox = made(paced=True, pace=0.2)
    mailbox._woken_at = time.monotonic()
    thread = waiting(mailbox, urgent_only=True)
    mailbox.put_nowait(3)
    assert comes_back(thread)
    assert mailbox.drain() == [3]


def test_a_paced_reader_of_a_slow_sender_is_rung_for_again() -> None:
    mailbox = made(paced=True, pace=0.01)
    mailbox._is_paced = True
    thread = waiting(mailbox, urgent_only=False)
    mailbox.put_nowait(3)
    assert comes_back(thread)
    assert mailbox.drain() == [3]


@for_each("paced", [False, True])
@for_each(
    "act",
    [
        lambda mailbox: mailbox.close(),
        lambda mailbox: (mailbox.close(), mailbox.drain()),
        lambda mailbox: (mailbox.put_nowait(9), mailbox.drain()),
    ],
)
def test_a_reader_does_not_sleep_for_ever(
    paced: bool, act: Callable[[ThreadMailbox[int]], object]
) -> None:
    mailbox = made(paced=paced)
    thread = waiting(mailbox, urgent_only=paced)
    act(mailbox)
    assert comes_back(thread)


@pytest.mark.parametrize("paced", [False, True])
def test_late_wake_up_wakes_no_reader(paced: bool) -> None:
    mailbox = made(paced=paced)
    thread = waiting(mailbox, urgent_only=paced)
    assert mailbox._bell is not None
    mailbox._bell[0].put(None)  # of what this thread has drained before it waited
    thread.join(0.05)
    assert thread.is_alive()
    mailbox.put_nowait(9)
    assert comes_back(thread)
    assert mailbox.drain() == [9]


def test_items_taken_before_do_not_hurry_later_waits() -> None:
    mailbox = made(paced=True)
    for _ in range(50):
        mailbox.put_nowait(9)
    assert mailbox.drain() == [9] * 50
    thread = waiting(mailbox, urgent_only=True)
    mailbox.put_nowait(3)
    thread.join(0.05)
    assert thread.is_alive()
    mailbox.close()
    assert comes_back(thread)


def test_a_closed_mailbox_takes_nothing_and_gives_nothing() -> None:
    mailbox = made(paced=False)
    mailbox.put_nowait(1)
    mailbox.close()
    assert not mailbox.put_nowait(2)
    assert mailbox.drain() == []
    mailbox.wait()
    abandoned = made(paced=False)
    abandoned.put_nowait(1)
    abandoned.abandon()
    assert not abandoned.put_nowait(2)
    assert abandoned.drain() == [1]


@pytest.mark.parametrize("paced", [False, True])
def test_a_reader_may_say_how_long_it_waits(paced: bool) -> None:
    mailbox = made(paced=paced)
    start = time.monotonic()
    mailbox.wait(0.05)
    assert 0.05 <= time.monotonic() - start < PATIENCE
    assert mailbox.drain() == []


def test_items_of_many_threads_arrive_complete_and_in_order() -> None:
    mailbox: ThreadMailbox[int] = ThreadMailbox(pace=0.001, is_urgent=lambda item: item % 7 == 0)

    def send(start: int) -> None:
        for number in range(start, start + 5000):
            assert mailbox.put_nowait(number)

    threads = [threading.Thread(target=send, args=(start,)) for start in (0, 5000)]
    for thread in threads:
        thread.start()
    items: list[int] = []
    while len(items) < 10_000:
        mailbox.wait()
        items += mailbox.drain()
    for thread in threads:
        thread.join()
    assert sorted(items) == list(range(10_000))
    for start in (0, 5000):
        own = [number for number in items if start <= number < start + 5000]
        assert own == sorted(own)
