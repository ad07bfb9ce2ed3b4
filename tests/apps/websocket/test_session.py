"""A session between frames and the service; most of it is tested through the server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel
import pytest

from asyncgen_apps.serving.limits import LARGE, SMALL
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.frames import read, read_large
from asyncgen_apps.websocket.messages import CloseCode
from asyncgen_apps.websocket.service import StreamService
from asyncgen_apps.websocket.session import MOST_BACKLOG
from asyncgen_apps.websocket.settings import StreamSettings
from tests.cases import for_each

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine


class Silent:
    """Is there, and is asked nothing."""

    is_healthy = True
    fingerprint = None


def service(**settings: object) -> StreamService:
    return StreamService(cast("Engine", Silent()), StreamSettings(**settings))  # type: ignore[arg-type]


def test_a_client_that_does_not_read_is_not_read() -> None:
    session = service().open(authorization=None, origin=None, host=None)
    for _ in range(MOST_BACKLOG):
        session.receive('{"type":"ping","nonce":1}')
    assert session.is_congested
    assert len(session.take()) == MOST_BACKLOG + 1
    assert not session.is_congested


def test_too_big_counts_bytes() -> None:
    session = service(max_message_bytes=40).open(authorization=None, origin=None, host=None)
    session.receive('{"type":"ping","nonce":"' + "ä" * 10 + '"}')
    assert session.closing is not None
    assert session.closing.code == 1009
    assert b"message_too_big" in session.take()[-1]


@pytest.mark.anyio
async def test_a_large_frame_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[int] = []

    def watched(frame: str) -> object:
        where.append(threading.get_ident())
        return read_large(frame)

    monkeypatch.setattr("asyncgen_apps.websocket.session.read_large", watched)
    session = service().open(authorization=None, origin=None, host=None)
    ping = '{"type":"ping","nonce":1'
    await session.receive_large(ping + "}")
    assert not where
    await session.receive_large(ping + " " * LARGE + "}")
    assert where and where[0] != threading.get_ident()
    assert session.take()[1:] == [b'{"type":"pong","nonce":1}'] * 2
    session.refuse(Fault("overloaded", "no more"), CloseCode.OVERLOADED)
    await session.receive_large(ping + " " * LARGE + "}")
    assert len(where) == 1


@pytest.mark.anyio
async def test_frames_are_parsed_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take 10 ms: those of a hundred connections would hold everybody up for a second."""
    parsed: list[int] = []

    def watched(frame: str) -> object:
        parsed.append(len(frame))
        return read(frame)

    monkeypatch.setattr("asyncgen_apps.websocket.session.read", watched)
    one, seen = service(), 0

    async def serve() -> None:
        session = one.open(authorization=None, origin=None, host=None)
        frames = ['{"type":"ping","nonce":1' + " " * SMALL + "}"]

        async def receive() -> str:
            return frames.pop()

        with pytest.raises(IndexError):
            await session.read(receive, receive)  # type: ignore[arg-type]

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(serve)
        while len(parsed) < 20:
            await anyio.lowlevel.checkpoint()
            assert len(parsed) - seen <= 1
            seen = len(parsed)


@pytest.mark.anyio
@for_each("size", [SMALL, LARGE])
async def test_a_frame_of_who_has_left_is_not_read(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for its turn."""
    for name in ("read", "read_large"):
        monkeypatch.setattr(f"asyncgen_apps.websocket.session.{name}", None)
    one = service()
    session = one.open(authorization=None, origin=None, host=None)
    session.bind(lambda: None, lambda: None, has_left=lambda: True)
    frames = ['{"type":"ping","nonce":1' + " " * size + "}"]

    async def receive() -> str:
        return frames.pop()

    with pytest.raises(IndexError):
        await session.read(receive, receive)  # type: ignore[arg-type]
    assert len(session.take()) == 1, "the greeting"
    assert not len(one.turns._doors)


@pytest.mark.anyio
async def test_a_large_frame_of_a_stranger_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("read", "read_large"):
        monkeypatch.setattr(f"asyncgen_apps.websocket.session.{name}", None)
    session = service(tokens=("t",)).open(authorization=None, origin=None, host=None)
    await session.receive_large('{"type":"auth","token":"t"' + " " * LARGE + "}")
    assert session.closing is not None and not session.is_authenticated


def test_a_closing_session_hears_nothing() -> None:
    one = service(tokens=("t",))
    session = one.open(authorization="Bearer wrong", origin=None, host=None)
    session.receive('{"type":"auth","token":"t"}')
    assert not session.is_authenticated
    [frame] = session.take()
    assert b"unauthorized" in frame
    assert one.counters.refused == {"unauthorized": 1}
    session.leave(1008)
    assert one.counters.connections == 0


def test_draining_closes_the_idle() -> None:
    one = service()
    session = one.open(authorization=None, origin=None, host=None)
    calls: list[str] = []
    session.bind(lambda: calls.append("ready"), lambda: calls.append("abort"))
    session.drain()
    assert session.closing is not None
    assert session.closing.code == 1001
    session.leave(1001)
    assert one.counters.connections == 0
