"""The gate counts, refuses and ends."""

from __future__ import annotations

import anyio
import pytest

from asyncgen_apps.openai_http.concurrency_limit import Gate
from asyncgen_apps.openai_http.errors import ApiError

pytestmark = pytest.mark.anyio


class Inside:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[ApiError] = []

    def abort(self, error: ApiError) -> None:
        self.told.append(error)


async def test_one_too_many() -> None:
    gate = Gate(1)
    with gate.admit(Inside(), "a"):
        assert gate.count == 1
        with pytest.raises(ApiError) as refused, gate.admit(Inside(), "a"):
            pass
        assert refused.value.status == 429
        assert refused.value.headers() == {"retry-after": "1"}
    with gate.admit(Inside(), "a"):
        pass
    assert gate.count == 0


async def test_a_drain() -> None:
    gate = Gate(2)
    one = Inside()
    with gate.admit(one, "a"):
        gate.drain()
        assert not one.told
        with pytest.raises(ApiError) as refused, gate.admit(Inside(), "a"):
            pass
        assert refused.value.status == 503
        gate.abort_all()
        assert one.told[0].code == "shutting_down"


async def test_waiting_for_the_last_one() -> None:
    gate = Gate(1)
    await gate.wait_empty()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            with gate.admit(Inside(), "a"):
                group.start_soon(gate.wait_empty)
                await anyio.wait_all_tasks_blocked()


async def test_several_wait() -> None:
    gate = Gate(1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            with gate.admit(Inside(), "a"):
                for _ in range(2):
                    group.start_soon(gate.wait_empty)
                    group.start_soon(gate.wait_draining)
                    await anyio.wait_all_tasks_blocked()
                gate.drain()
        await gate.wait_draining()
