"""The client as its users see it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
import trio.testing
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from asyncgen import (
    ContextLengthError,
    EngineClosedError,
    InvalidRequestError,
    OverloadedError,
    Usage,
)
from asyncgen_apps.websocket.client.client import Client, ConnectionLostError, connect
from asyncgen_apps.websocket.client.trio import TrioConnection
from tests.apps.websocket.scripted import Peer, ScriptedServer
from tests.cases import for_each

if TYPE_CHECKING:
    from asyncgen_apps.cli.source import LLM


pytestmark = pytest.mark.anyio


class Told:
    """Lets a test wait for what the script has heard, whatever the loop."""

    def __init__(self, count: int = 1) -> None:
        self._all = threading.Semaphore(0)
        self._count = count

    def one(self) -> None:
        self._all.release()

    async def wait(self) -> None:
        for _ in range(self._count):
            assert await anyio.to_thread.run_sync(self._all.acquire, True, 60)


async def answer_all(peer: Peer) -> None:
    """Answer every request with its prompt."""
    await peer.hello()
    while True:
        message = await peer.hear()
        if message["type"] == "generate":
            await peer.accept(message["id"])
            await peer.answer(message["id"], message.get("prompt", ""))


async def begin_only(peer: Peer) -> None:
    """Say one letter, then wait; end what is cancelled."""
    await peer.hello()
    while True:
        message = await peer.hear()
        if message["type"] == "generate":
            await peer.accept(message["id"])
            await peer.delta(message["id"], 1, "a")
        else:
            await peer.done(message["id"], 2, "cancelled")


async def test_text_events_and_result() -> None:
    with ScriptedServer(answer_all) as server:
        async with connect(server.url) as client:
            with anyio.fail_after(60):
                stream = client.stream("hello", seed=7, temperature=None)
                assert "".join([text async for text in stream]) == "hello"
                result = stream.result
                assert (result.text, result.finish_reason) == ("hello", "stop")
                assert result.usage == Usage(3, 4, 1)
                assert result.timing.tokens_per_second == 5.0
                async with client.stream([1, 2]) as ids:
                    await ids.aclose()
                events = [event async for event in client.stream("ab").events()]
                assert [event.text for event in events] == ["a", "b", ""]
                assert events[-1].usage == Usage(3, 4, 1)
                assert (await client.generate("xyz")).text == "xyz"
            assert client.model == "scripted"
            assert client.limits.max_requests == 8
            assert client.is_healthy
        assert server.peers[0].heard[0]["params"] == {"seed": 7}
        assert server.peers[0].heard[1]["token_ids"] == [1, 2]


async def test_many_streams_share_a_connection() -> None:
    texts = [f"answer number {number}" for number in range(30)]
    got: dict[str, str] = {}

    with ScriptedServer(answer_all) as server:
        async with connect(server.url) as client:

            async def read(text: str) -> None:
                got[text] = "".join([piece async for piece in client.stream(text)])

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for text in texts:
                        tasks.start_soon(read, text)
        assert len(server.peers) == 1
    assert got == {text: text for text in texts}


@for_each(
    ("fields", "kind"),
    [
        ({"code": "invalid_request", "param": "top_p"}, InvalidRequestError),
        ({"code": "context_length"}, ContextLengthError),
        ({"code": "overloaded", "retry_after": 2.0}, OverloadedError),
        ({"code": "draining"}, EngineClosedError),
    ],
)
async def test_a_refused_request_raises_and_the_next_one_runs(
    fields: dict[str, Any], kind: type[Exception]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        await peer.say("error", id=(await peer.hear())["id"], message="no", **fields)
        name = (await peer.hear())["id"]
        await peer.accept(name)
        await peer.answer(name, "abc")
        await peer.linger()

    with ScriptedServer(script) as server:
        async with connect(server.url) as client:
            with anyio.fail_after(60):
                with pytest.raises(kind):
                    async with client.stream("x", top_p=7.0):
                        raise AssertionError("entered")
                assert (await client.generate("y")).text == "abc"


async def test_leaving_a_stream_cancels_on_the_server() -> None:
    told = Told(4)

    async def script(peer: Peer) -> None:
        hear = peer.hear

        async def hear_and_tell() -> dict[str, Any]:
            message = await hear()
            if message["type"] == "cancel":
                told.one()
            return message

        peer.hear = hear_and_tell  # type: ignore[method-assign]
        await begin_only(peer)

    with ScriptedServer(script) as server:
        async with connect(server.url) as client:
            with anyio.fail_after(60):
                async for _ in client.stream("break"):
                    break
                async with client.stream("with") as stream:
                    await anext(stream)
                with anyio.CancelScope() as scope:
                    async for _ in client.stream("scope"):
                        scope.cancel()
                held = [client.stream("drop")]
                await anext(held[0])
                thread = threading.Thread(target=held.clear)
                thread.start()
                thread.join(60)
                await told.wait()


async def test_cancel_from_another_thread_ends_the_loop_with_received_text() -> None:
    with ScriptedServer(begin_only) as server:
        async with connect(server.url) as client:
            with anyio.fail_after(60):
                stream = client.stream("x")
                assert await anext(stream) == "a"
                await anyio.to_thread.run_sync(stream.cancel)
                assert [text async for text in stream] == []
    assert stream.result.text == "a"
    assert stream.result.finish_reason == "cancelled"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A goodbye takes as long as a slow machine needs."""
    monkeypatch.setattr("asyncgen_apps.websocket.client.link.CLOSE_SECONDS", 60.0)


@pytest.mark.usefixtures("unhurried")
async def test_closing_the_client_aborts_requests_and_the_connection() -> None:
    gone = Told()

    async def script(peer: Peer) -> None:
        try:
            await begin_only(peer)
        finally:
            await peer.connection.wait_closed()
            gone.one()

    with ScriptedServer(script) as server, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with connect(server.url) as client:
                stream = client.stream("x")
                assert await anext(stream) == "a"

                async def read_on() -> None:
                    assert [text async for text in stream] == []

                tasks.start_soon(read_on)
                await anyio.wait_all_tasks_blocked()
        assert stream.result.finish_reason == "aborted"
        assert not client.is_healthy
        with pytest.raises(EngineClosedError):
            client.stream("y")
        await gone.wait()
        assert server.peers[0].heard[-1]["type"] == "cancel"
        assert server.peers[0].connection.close_code == 1000


@pytest.mark.usefixtures("unhurried")
async def test_a_cancelled_block_says_goodbye_too() -> None:
    gone = Told()

    async def script(peer: Peer) -> None:
        try:
            await begin_only(peer)
        finally:
            await peer.connection.wait_closed()
            gone.one()

    with ScriptedServer(script) as server, anyio.fail_after(60):
        with anyio.CancelScope() as scope:
            async with connect(server.url) as client:
                async for _ in client.stream("x"):
                    scope.cancel()
        assert scope.cancelled_caught
        await gone.wait()
        assert server.peers[0].heard[-1]["type"] == "cancel"
        assert server.peers[0].connection.close_code == 1000


async def test_errors_of_the_block_pass_as_they_are() -> None:
    with ScriptedServer(answer_all) as server:
        for kind in (ZeroDivisionError, StopAsyncIteration, KeyboardInterrupt):
            with pytest.raises(kind):
                async with connect(server.url):
                    raise kind


async def test_connect_without_server_raises_connection_lost() -> None:
    with ScriptedServer(answer_all) as server:
        url = server.url
    with anyio.fail_after(60), pytest.raises(ConnectionLostError):
        async with connect(url):
            raise AssertionError("connected")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_task_is_left_running(anyio_backend: str) -> None:
    with ScriptedServer(begin_only) as server:
        before = asyncio.all_tasks()
        async with connect(server.url) as client:
            async for _ in client.stream("x"):
                break
        assert asyncio.all_tasks() == before


@for_each("url", ["", "localhost", "http://localhost", "ws://", "ws://u:p@host/", "ws://host:x/"])
async def test_an_address_is_checked(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="url"):
        async with connect(url):
            raise AssertionError("connected")


@for_each("token", ["", "two words", "new\nline", "nön"])
async def test_a_token_that_no_header_can_carry_is_not_shown(token: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        async with connect("ws://127.0.0.1:9/", token=token):
            raise AssertionError("connected")
    assert not token or token not in str(caught.value)


async def test_a_prompt_and_parameters_are_checked_at_the_call() -> None:
    with ScriptedServer(answer_all) as server:
        async with connect(server.url) as client:
            with pytest.raises(InvalidRequestError, match="prompt"):
                client.stream("")
            with pytest.raises(InvalidRequestError, match="logits_processor"):
                client.stream("x", logits_processor=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_it_loads_no_torch(anyio_backend: str) -> None:
    code = "import sys, asyncgen_apps.websocket.client.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def _checked_by_mypy(client: Client) -> LLM:
    """The client has what the command line needs of a model."""
    return client


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
