"""One write a turn of the loop, none to a full socket, and a deadline for it."""

from __future__ import annotations

import asyncio
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from asyncgen_apps.serving.time_slices import BYTES_OF_A_TURN
from asyncgen_apps.websocket.flush_queue import FLUSH_BATCH, FlushQueue
from tests.apps.websocket.serving import STORY, Served, served, teller, wait_for
from tests.doubles.engine import no_thread_left
from tests.doubles.models import Gate

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The library's server is of asyncio."""
    return "asyncio"


def stand_still(one: Served) -> None:
    """Block this loop until the engine has said all: by then it is all ready together."""
    end = time.monotonic() + 60
    while one.unfinished:
        assert time.monotonic() < end
        time.sleep(0.01)


async def test_messages_ready_together_go_out_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    async with served(teller(gate)) as one, one.client() as client:
        [connection] = one.server._connections.connections
        writes: list[bytes] = []
        real = connection.transport.write

        def write(data: bytes) -> None:
            writes.append(data)
            real(data)

        monkeypatch.setattr(connection, "transport", SimpleNamespace(write=write))
        for number in range(16):
            await client.begin(str(number))
        before = one.server.service.counters.messages_sent
        writes.clear()
        gate.open()
        stand_still(one)
        ends = 0
        while ends < 16:
            ends += (await client.get())["type"] == "done"
        frames = one.server.service.counters.messages_sent - before
        assert len(writes) * 3 < frames
        monkeypatch.undo()


async def test_a_slow_socket_gets_fewer_and_longer_pieces() -> None:
    async with served() as one, one.client() as client:
        [connection] = one.server._connections.connections
        connection.pause_writing()
        await client.send("generate", id="a", token_ids=[1])
        await wait_for(lambda: one.server.service.counters.requests_total == 1)
        await one.wait_idle()
        await wait_for(lambda: not one.server.service._streams)
        connection.resume_writing()
        messages = [await client.get() for _ in range(3)]
        assert [message["type"] for message in messages] == ["accepted", "delta", "done"]
        assert messages[1]["text"] == STORY


async def test_a_slow_one_that_catches_up_is_not_dropped() -> None:
    async with served(send_seconds=0.1) as one, one.client() as client:
        [connection] = one.server._connections.connections
        connection.pause_writing()
        connection.resume_writing()
        await client.begin()
        assert (await client.rest())[0] == STORY
        connection.pause_writing()
        assert await client.wait_closed() == 1006
        assert one.server.service.counters.dropped == 1


class Unsent:
    """A transport whose client reads a little, and then nothing."""

    def __init__(self, transport: Any, *sizes: int) -> None:
        self._transport = transport
        self.sizes = list(sizes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0) if self.sizes else 100


async def test_who_reads_anything_is_not_dropped() -> None:
    async with served(send_seconds=0.05) as one, one.client() as client:
        [connection] = one.server._connections.connections
        sizes = 400, 300, 300, 200, 200, 100, 100
        unsent: Any = Unsent(connection.transport, *sizes)
        connection.transport = unsent
        connection.pause_writing()
        assert await client.wait_closed() == 1006
        assert not unsent.sizes  # it had its time again whenever fewer were unsent


class Flushed:
    """A connection that counts."""

    def __init__(self, failing: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.flushes = 0
        self.is_aborted = False
        self._failing = failing

    def flush(self) -> None:
        self.flushes += 1
        if self._failing:
            raise RuntimeError("broken")

    def abort(self) -> None:
        self.is_aborted = True


async def test_connections_with_one_stream_take_turns_a_few_at_a_time() -> None:
    flush_queue = FlushQueue()
    many = [Flushed() for _ in range(FLUSH_BATCH + 2)]
    for one in many:
        flush_queue.add(one)
    assert [one.flushes for one in many] == [1] * FLUSH_BATCH + [0, 0]
    await asyncio.sleep(0)
    assert [one.flushes for one in many] == [1] * len(many)


async def test_failing_flush_ends_one_connection_only() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    flush_queue = FlushQueue()
    many = [Flushed(failing=number == 1) for number in range(3)]
    for one in many:
        flush_queue.add(one)
    await asyncio.sleep(0)
    assert [one.flushes for one in many] == [1, 1, 1]
    assert [one.is_aborted for one in many] == [False, True, False]
    assert str(told[0]["exception"]) == "broken"


class Burst(Flushed):
    """A connection with bytes to send."""

    def __init__(self, queue: FlushQueue, left: int, log: list[int]) -> None:
        super().__init__()
        self.queue, self.left, self.log = queue, left, log

    def flush(self) -> None:
        most = self.queue.allowance
        if most <= 0:
            self.queue.defer(self)
            return
        count = min(self.left, most)
        self.left -= count
        self.log[-1] += count
        self.queue.spend(count, self.loop)
        if self.left:
            self.queue.defer(self)


async def test_what_waits_goes_out_in_many_turns() -> None:
    queue, log = FlushQueue(), [0]
    large = [Burst(queue, 5 * BYTES_OF_A_TURN, log) for _ in range(3)]
    small = Burst(queue, 100, log)
    usual = sys.getswitchinterval()
    for each in large:
        each.flush()
    assert sys.getswitchinterval() < usual
    turns = 0
    while any(each.left for each in large):
        await asyncio.sleep(0)
        log.append(0)
        turns += 1
        if turns == 3:
            small.flush()
    assert max(log) <= BYTES_OF_A_TURN and sum(log) == 15 * BYTES_OF_A_TURN + 100
    assert not small.left
    await wait_for(lambda: sys.getswitchinterval() >= usual)
