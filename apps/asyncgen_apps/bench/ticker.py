"""Measure how late a regular tick of an event loop is, on asyncio and trio."""

from __future__ import annotations

from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


PERIOD = 0.005


@asynccontextmanager
async def ticking(clock: Callable[[], float] = perf_counter) -> AsyncIterator[list[float]]:
    """Tick every 5 ms while the block runs.

    Args:
        clock: Function that returns seconds.

    Yields:
        The lateness of every tick in seconds. A loop that was blocked for longer than a period
        owes several ticks; each counts with its own lateness, so that one long stall weighs as
        much as for a waiting client.
    """
    lateness: list[float] = []
    due = clock() + PERIOD

    async def tick() -> None:
        nonlocal due
        while True:
            await anyio.sleep(max(0.0, due - clock()))
            due = missed_ticks(due, clock(), lateness)

    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        try:
            yield lateness
        except Exception as error:
            # Raised after the group, which would wrap it in an exception group.
            failure = error
        # A stall at the very end still owes its ticks.
        await anyio.sleep(2 * PERIOD)
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def missed_ticks(due: float, now: float, lateness: list[float]) -> float:
    """Record every tick that was due until ``now``; return when the next one is due."""
    while due <= now:
        lateness.append(now - due)
        due += PERIOD
    return due
