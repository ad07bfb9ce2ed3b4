from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest
from websockets.exceptions import ConnectionClosed

from asyncgen_apps.websocket.client.socket import Socket, SocketError, open_socket
from tests.apps.websocket.scripted import Peer, ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


def dial(url: str, open_seconds: float = 10.0):  # type: ignore[no-untyped-def]
    return open_socket(
        url,
        subprotocol="asyncgen.v1",
        headers={"X-Test": "yes"},
        tls=None,
        open_seconds=open_seconds,
        close_seconds=1.0,
    )


async def test_messages_go_both_ways_and_headers_and_subprotocol_along() -> None:
    async def script(peer: Peer) -> None:
        await peer.connection.send(f"{peer.connection.subprotocol}")
        await peer.connection.send(await peer.connection.recv())

    with ScriptedServer(script) as server:
        async with dial(server.url) as socket:
            assert await socket.receive() == "asyncgen.v1"
            await socket.send("héllo")
            assert await socket.receive() == "héllo"
            with pytest.raises(SocketError):
                await socket.receive()
            with pytest.raises(SocketError):
                await socket.send("too late")
        assert server.requests[0].headers["X-Test"] == "yes"


async def test_no_server_is_an_error() -> None:
    with ScriptedServer(lambda peer: peer.hello()) as server:
        url = server.url
    with pytest.raises(SocketError) as caught:
        async with dial(url):
            raise AssertionError("opened")
    assert isinstance(caught.value.__cause__, OSError)


async def test_errors_of_the_block_pass_as_they_are() -> None:
    with ScriptedServer(lambda peer: peer.linger()) as server:
        with pytest.raises(ZeroDivisionError):
            async with dial(server.url):
                raise ZeroDivisionError


async def test_a_server_that_never_accepts_is_left_in_time() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with anyio.fail_after(60), pytest.raises(SocketError) as caught:
            async with dial(f"ws://127.0.0.1:{port}/", open_seconds=0.1):
                raise AssertionError("opened")
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_dropped_connection_needs_no_answer() -> None:
    deaf = anyio.Event()

    async def script(peer: Peer) -> None:
        peer.connection.transport.pause_reading()
        await peer.connection.wait_closed()

    with ScriptedServer(script) as server, anyio.fail_after(60):
        async with dial(server.url) as socket:
            await socket.abort()
            with pytest.raises(SocketError):
                await socket.receive()
    deaf.set()


async def test_a_connection_with_much_unread_is_dropped_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(peer: Peer) -> None:
        with suppress(ConnectionClosed):
            while True:
                await peer.connection.send("x" * 1000)

    with ScriptedServer(script) as server, anyio.fail_after(60):
        async with dial(server.url) as socket:
            assert await socket.receive()
            # As many as make the library pause reading: nobody takes them any more.
            await wait_until(lambda: is_paused(socket))
            await socket.abort()
    assert not caplog.records


def is_paused(socket: Socket) -> bool:
    return bool(socket._connection.recv_messages.paused)


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await anyio.sleep(0.01)
