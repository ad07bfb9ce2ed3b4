"""Test the limits of sockets before their handshake, on real ones."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from asyncgen_apps.serving.sockets import RESERVE
from tests.apps.websocket.serving import PATIENCE, served
from tests.cases import for_each
from tests.doubles.engine import no_thread_left

if TYPE_CHECKING:
    from tests.apps.websocket.serving import Served

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

BACKENDS = [
    pytest.param(("asyncio", {}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]


@pytest.fixture(params=BACKENDS)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    """The library's server is of asyncio."""
    return request.param


def dial(one: Served) -> socket.socket:
    """Connect."""
    return socket.create_connection(("127.0.0.1", one.server.port), PATIENCE)


def ask(one: Served, content: bytes) -> bytes:
    """Send, and return all that comes until the server closes."""
    said = b""
    with dial(one) as wire:
        try:
            wire.sendall(content)
        except ConnectionError:
            pass
        try:
            while piece := wire.recv(65536):
                said += piece
        except ConnectionError:
            pass
    return said


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@for_each(
    ("start", "piece"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n", b"a: " + b"a" * 1000 + b"\r\n", id="headers"),
        pytest.param(b"GET / HTTP/1.1\r\na: ", b"a" * 1000, id="a line without an end"),
        pytest.param(b"GET /", b"a" * 1000, id="a path without an end"),
    ],
)
async def test_a_head_without_an_end(start: bytes, piece: bytes) -> None:
    """It is refused while it comes, and read no further: the client cannot send on for ever."""
    async with served() as one:
        said = await anyio.to_thread.run_sync(ask, one, start + 90 * piece)
        assert said.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 "))

        def flood() -> int:
            taken = 0
            with dial(one) as wire:
                try:
                    wire.sendall(start)
                    for _ in range(30):
                        taken += wire.send(piece * 1000)
                except ConnectionError:
                    pass
            return taken

        assert await anyio.to_thread.run_sync(flood) < 20_000_000
        assert b" 200 " in await anyio.to_thread.run_sync(ask, one, HEALTH)


async def test_silence_is_closed() -> None:
    async with served(open_seconds=0.2) as one:
        assert await anyio.to_thread.run_sync(ask, one, b"") == b""
        assert await anyio.to_thread.run_sync(ask, one, b"GET / HT") == b""


async def test_silent_sockets_do_not_block_others() -> None:
    """Sockets beyond the limit are few, and the one goes that has been silent for longest."""
    async with served(max_connections=2, tokens=("key",)) as one:
        with ExitStack() as stack:
            async with one.client("key") as client:

                def fill() -> None:
                    silent = [stack.enter_context(dial(one)) for _ in range(2 + RESERVE)]
                    assert silent[0].recv(1) == b""  # the client was there before

                await anyio.to_thread.run_sync(fill)
                assert b" 200 " in await anyio.to_thread.run_sync(ask, one, HEALTH)
                async with one.client("key") as other:
                    await other.begin()
                    await other.rest()
                await client.begin()
                await client.rest()
        async with one.client("key"):
            assert b" 200 " in await anyio.to_thread.run_sync(ask, one, HEALTH)


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@for_each("content", [HANDSHAKE, HEALTH, HANDSHAKE[:60], b""])
async def test_sockets_of_one_address_leave_room_for_another(content: bytes) -> None:
    """Whether they wait for a head, for a key, or were refused and read nothing of that."""
    async with served(max_connections=8, tokens=("key",)) as one:
        with ExitStack() as stack:
            wires: list[socket.socket] = []

            def flood(count: int) -> None:
                for _ in range(count):
                    wire = stack.enter_context(socket.socket())
                    wire.bind(("127.0.0.2", 0))
                    wire.settimeout(PATIENCE)
                    wire.connect(("127.0.0.1", one.server.port))
                    wire.sendall(content)
                    wires.append(wire)

            await anyio.to_thread.run_sync(flood, 8 + RESERVE)
            for _ in range(3):
                await anyio.to_thread.run_sync(flood, 3)
                async with one.client("key") as client:
                    await client.begin()
                    await client.rest()
                assert b" 200 " in await anyio.to_thread.run_sync(ask, one, HEALTH)
