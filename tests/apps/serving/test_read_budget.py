"""Test `asyncgen_apps.serving.read_budget`: a turn of the loop parses a few slices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.serving import read_budget
from asyncgen_apps.serving.read_budget import LONG_TURN, TURN_SECONDS, ReadBudget, running_budget

if TYPE_CHECKING:
    from collections.abc import Callable


async def turn_until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is so; no event tells of it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Clock:
    """The two clocks of the budget, which stand still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for name in ("perf_counter", "thread_time"):
            monkeypatch.setattr(read_budget, name, lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Fed:
    """A connection whose every slice takes so many seconds."""

    least_slice, most_slice, most_unread = 512, 4096, 2048

    def __init__(
        self,
        clock: Clock,
        fed: list[Fed],
        seconds: float,
        then: Callable[[], None] | None = None,
        peer: str = "a",
    ) -> None:
        self.clock, self.fed, self.seconds, self.then = clock, fed, seconds, then
        self.data = b""
        self.is_held = False
        self.is_aborted = False
        self.peer = peer
        self.may_feed = True

    def cut(self, data: bytes | bytearray, most: int) -> int:
        return min(len(data), most)

    def feed(self, data: bytes) -> None:
        self.data += data
        self.fed.append(self)
        self.clock.now += self.seconds
        if self.then is not None:
            self.then()

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def abort(self) -> None:
        self.is_aborted = True


def test_connections_take_turns_and_nothing_is_lost(clock: Clock) -> None:
    async def main() -> None:
        budget, fed = ReadBudget(), list[Fed]()
        flood, other = (Fed(clock, fed, TURN_SECONDS * 0.6) for _ in range(2))
        sent = bytes(range(256)) * 16
        budget.take(flood, sent)
        assert flood.is_held and not fed
        budget.take(other, sent[:1024])
        most, before = 0, 0
        while flood.is_held or other.is_held:
            await asyncio.sleep(0)
            most, before = max(most, len(fed) - before), len(fed)
        assert most == 2
        assert (flood.data, other.data) == (sent, sent[:1024])
        assert fed[:4] == [flood, other, flood, other]

    asyncio.run(main())


def test_who_sends_little_is_next_however_many_send_much(clock: Clock) -> None:
    async def main() -> None:
        budget, fed = ReadBudget(), list[Fed]()
        floods = [Fed(clock, fed, TURN_SECONDS) for _ in range(20)]
        for flood in floods:
            budget.take(flood, bytes(8192))
        await turn_until(lambda: len(fed) >= 50)
        before = len(fed)
        small = Fed(clock, fed, TURN_SECONDS)
        budget.take(small, b"a")
        await turn_until(lambda: bool(small.data))
        assert len(fed) - before <= 12  # of 20: those who have had as little come first
        for flood in floods:
            budget.forget(flood)

    asyncio.run(main())


def test_who_has_one_connection_is_next_however_many_another_client_opens(clock: Clock) -> None:
    async def main() -> None:
        budget, fed = ReadBudget(), list[Fed]()
        many = [Fed(clock, fed, TURN_SECONDS) for _ in range(50)]
        for each in many:
            budget.take(each, bytes(600))
        await turn_until(lambda: len(fed) >= 3)
        before = len(fed)
        other = Fed(clock, fed, TURN_SECONDS, peer="b")
        budget.take(other, b"a")
        await turn_until(lambda: bool(other.data))
        assert len(fed) - before <= 4  # of 50 that have had nothing yet
        await turn_until(lambda: all(len(each.data) == 600 for each in many))
        for each in [*many, other]:
            budget.forget(each)
        assert not budget._queue._of

    asyncio.run(main())


def test_little_is_parsed_while_what_it_starts_makes_turns_long(clock: Clock) -> None:
    """In turns that take longer, one connection a turn; then as many as before."""

    async def main() -> None:
        budget, fed = ReadBudget(), list[Fed]()
        connections = [Fed(clock, fed, TURN_SECONDS / 10) for _ in range(400)]
        for connection in connections:
            budget.take(connection, bytes(1024))
        counts = list[int]()
        while len(counts) < 40:
            before = len(fed)
            await asyncio.sleep(0)
            if len(fed) > before:
                counts.append(len(fed) - before)
                clock.now += 2 * LONG_TURN * (len(counts) < 20)
        assert counts[0] >= 10
        assert set(counts[6:20]) == {1}
        assert counts[-1] >= 10
        for connection in connections:
            budget.forget(connection)

    asyncio.run(main())


def test_one_that_may_not_go_on_is_resumed_and_one_that_fails_ends(clock: Clock) -> None:
    async def main() -> None:
        budget, fed = ReadBudget(), list[Fed]()
        waits = Fed(clock, fed, 0.0)

        def stop() -> None:
            waits.may_feed = False

        def fail() -> None:
            raise ValueError("this one fails")

        waits.then = stop
        fails, other = Fed(clock, fed, 0.0, fail), Fed(clock, fed, 0.0)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for connection in (waits, fails, other):
            budget.take(connection, bytes(1024))
        await turn_until(lambda: not other.is_held)
        assert (len(waits.data), waits.is_held, fails.is_aborted) == (512, False, True)
        budget.take(waits, b"a")
        assert not waits.is_held  # there is room for more
        budget.take(waits, bytes(2000))
        assert waits.is_held
        assert len(waits.data) == 512
        waits.may_feed, waits.then = True, None
        budget.resume(waits)
        await turn_until(lambda: not waits.is_held)
        assert len(waits.data) == 3025
        assert budget.forget(waits) == b""
        assert len(budget.forget(fails)) == 512
        assert running_budget() is running_budget() is not budget

    asyncio.run(main())


def test_one_that_what_it_parses_resumes_is_read_again(clock: Clock) -> None:
    """As the frame does that ends a WebSocket; nobody would notice that its client leaves."""

    async def main() -> None:
        budget, fed = ReadBudget(), list[Fed]()
        one = Fed(clock, fed, 0.0, then=lambda: budget.resume(one))
        budget.take(one, bytes(2048))
        assert one.is_held
        await turn_until(lambda: len(one.data) == 2048)
        await asyncio.sleep(0)
        assert not one.is_held
        budget.take(one, bytes(8192))
        await turn_until(lambda: len(one.data) == 2048 + 8192)
        assert not one.is_held

    asyncio.run(main())


def test_small_pieces_wait_once_the_time_is_spent(clock: Clock) -> None:
    async def main() -> None:
        budget, fed = ReadBudget(), list[Fed]()
        clock.now = 1.0
        many = [Fed(clock, fed, TURN_SECONDS * 0.6) for _ in range(4)]
        for each in many:
            budget.take(each, b"x")
        assert (fed, [each.is_held for each in many]) == (many[:2], [False, False, True, True])
        await turn_until(lambda: fed == many)
        clock.now += 3 * TURN_SECONDS
        budget.take(many[0], b"y")
        assert (many[0].data, many[0].is_held) == (b"xy", False)

    asyncio.run(main())
