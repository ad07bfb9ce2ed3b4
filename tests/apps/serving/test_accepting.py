"""Connections that wait together are accepted in few turns of the loop."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from asyncgen_apps.serving.accepting import AT_ONCE, Accepting
from tests.cases import for_each

MANY = 100


async def accept_all() -> tuple[int, int]:
    """Return the connections, and the turns in which they came."""
    loop, made, turns = asyncio.get_running_loop(), 0, set()
    turn = 0

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            nonlocal made
            made += 1
            turns.add(turn)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)

    listener = socket.create_server(("127.0.0.1", 0), backlog=MANY)
    server = await loop.create_server(Accepting(listener, Echo), sock=listener)
    clients = []
    for _ in range(MANY):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        clients.append(client)
    end = time.monotonic() + 60
    while made < MANY and time.monotonic() < end:
        await asyncio.sleep(0)
        turn += 1
    for client in clients:
        await loop.sock_sendall(client, b"hi")
        assert await loop.sock_recv(client, 2) == b"hi"
        client.close()
    server.close()
    await server.wait_closed()
    return made, len(turns)


@for_each("kind", ["asyncio", "uvloop"])
def test_all_that_wait_are_accepted(kind: str) -> None:
    factory = pytest.importorskip("uvloop").new_event_loop if kind == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        made, turns = runner.run(accept_all())
    assert made == MANY and turns <= 2 * MANY / AT_ONCE + 4
