from __future__ import annotations

import pytest
import trio
import trio.testing
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from asyncgen_apps.websocket.client.trio import TrioConnection

FRAME = Frame(Opcode.TEXT, b"hello")


async def dropped(*, is_full: bool) -> TrioConnection:
    """A connection that was dropped while its reader waited for bytes, or for space."""
    ours, _theirs = trio.testing.memory_stream_pair()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            protocol = ClientProtocol(parse_uri("ws://localhost/"))
            connection = TrioConnection(nursery, ours, protocol)
            connection.response = Response(101, "Switching Protocols", Headers())
            if is_full:
                connection.pause_reading()
            nursery.start_soon(connection.recv_events)
            await trio.testing.wait_all_tasks_blocked()
            await connection.close_stream()
    return connection


@pytest.mark.parametrize("is_full", [False, True])
def test_its_reader_ends_with_it(is_full: bool) -> None:
    assert trio.run(lambda: dropped(is_full=is_full)).stream_closed.is_set()


def test_a_message_read_too_late_is_no_fault() -> None:
    connection = trio.run(lambda: dropped(is_full=False))
    with pytest.raises(EOFError):
        connection.recv_messages.put(FRAME)
    connection.process_event(FRAME)
