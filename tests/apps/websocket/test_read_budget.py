"""Test `asyncgen_apps.websocket.read_budget`: a turn of the loop parses a few slices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from asyncgen_apps.websocket.read_budget import LEAST_SLICE, TURN_SECONDS, ReadBudget

if TYPE_CHECKING:
    import pytest


class Fed:
    """A connection whose every slice takes half a turn's time."""

    may_feed = True

    def __init__(self, now: list[float], fed: list[Fed]) -> None:
        self.now, self.fed = now, fed
        self.data = b""
        self.is_held = False

    def feed(self, data: bytes) -> None:
        assert len(data) <= LEAST_SLICE
        self.data += data
        self.fed.append(self)
        self.now[0] += TURN_SECONDS * 0.6

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False


def test_connections_take_turns_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    now, fed = [0.0], list[Fed]()
    monkeypatch.setattr("asyncgen_apps.websocket.read_budget.perf_counter", lambda: now[0])

    async def main() -> None:
        budget = ReadBudget()
        flood, other = Fed(now, fed), Fed(now, fed)
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


def test_small_pieces_wait_once_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    now, fed = [1.0], list[Fed]()
    monkeypatch.setattr("asyncgen_apps.websocket.read_budget.perf_counter", lambda: now[0])

    async def main() -> None:
        budget = ReadBudget()
        many = [Fed(now, fed) for _ in range(4)]
        for each in many:
            budget.take(each, b"x")
        assert (fed, [each.is_held for each in many]) == (many[:2], [False, False, True, True])
        await asyncio.sleep(0)
        assert fed == many
        now[0] += 3 * TURN_SECONDS
        budget.take(many[0], b"y")
        assert (many[0].data, many[0].is_held) == (b"xy", False)

    asyncio.run(main())
