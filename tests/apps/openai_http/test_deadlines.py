"""One timer for many connections: each ends in time, whatever happens to the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from asyncgen_apps.openai_http.deadlines import Deadlines

SHORT = 0.02


@dataclass(eq=False)
class Connection:
    """Something that lives on a loop."""

    loop: asyncio.AbstractEventLoop


async def _wait_for(ended: list[Connection], count: int) -> None:
    for _ in range(1000):
        if len(ended) >= count:
            return
        await asyncio.sleep(SHORT)
    raise AssertionError(f"{len(ended)} of {count} ended")


def test_requests_within_and_beyond_their_time() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended: list[Connection] = []
        deadlines = Deadlines(SHORT, ended.append)
        late, early, later = (Connection(loop) for _ in range(3))
        for connection in (late, early, late, later):
            deadlines.add(connection)
        deadlines.discard(early)
        await _wait_for(ended, 2)
        assert ended == [late, later]
        deadlines.add(early)
        await _wait_for(ended, 3)

    asyncio.run(run())


def test_failing_deadline_does_not_stop_the_others() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        told: list[object] = []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        ended: list[Connection] = []

        def end(connection: Connection) -> None:
            ended.append(connection)
            if len(ended) == 1:
                raise RuntimeError("this one fails")

        deadlines = Deadlines(SHORT, end)
        connections = [Connection(loop) for _ in range(3)]
        for connection in connections:
            deadlines.add(connection)
        await _wait_for(ended, 3)
        assert ended == connections and len(told) == 1

    asyncio.run(run())
