from __future__ import annotations

import threading

import anyio
import pytest

from asyncgen_apps.websocket.client.outbox import Outbox

pytestmark = pytest.mark.anyio


async def test_items_of_many_threads_arrive_in_the_loop_in_the_order_of_each() -> None:
    got: list[tuple[int, int]] = []
    where: set[int] = set()
    everything = anyio.Event()

    def handle(item: tuple[int, int]) -> None:
        where.add(threading.get_ident())
        got.append(item)
        if len(got) == 400:
            everything.set()

    outbox = Outbox(handle)

    def post(sender: int) -> None:
        for number in range(100):
            assert outbox.post((sender, number))

    threads = [threading.Thread(target=post, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    with anyio.fail_after(60):
        await everything.wait()
    assert where == {threading.get_ident()}
    for sender in range(4):
        assert [number for who, number in got if who == sender] == list(range(100))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # needs no loop of its own
def test_a_loop_that_has_ended_is_no_error(anyio_backend: str) -> None:
    for backend in ("asyncio", "trio"):

        async def make() -> Outbox[int]:
            return Outbox(print)

        assert not anyio.run(make, backend=backend).post(1)
