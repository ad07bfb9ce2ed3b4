"""Connections that break in every way, and come back."""

from __future__ import annotations

import http
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from websockets.datastructures import Headers
from websockets.http11 import Response

from asyncgen import EngineClosedError, EngineDiedError, InvalidRequestError, OverloadedError
from asyncgen_apps.websocket.client.client import (
    Client,
    ConnectionLostError,
    Patience,
    UnauthorizedError,
    connect,
)
from asyncgen_apps.websocket.client.socket import open_socket
from tests.apps.websocket.cutting import CuttingProxy
from tests.apps.websocket.scripted import Peer, ScriptedServer
from tests.cases import for_each

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from websockets.http11 import Request

    from asyncgen_apps.websocket.client.socket import Socket

pytestmark = pytest.mark.anyio

TEXT = "A long answer, one piece at a time: é, 水, 🌊."
QUICK = Patience(first_delay=0.001, longest_delay=0.01)


async def serve_text(peer: Peer, pieces: str = TEXT) -> None:
    """Answer every request, whether it is new or resumed."""
    await peer.hello()
    while True:
        message = await peer.hear()
        if message["type"] != "cancel":
            await peer.accept(message["id"])
            await peer.answer(message["id"], pieces, message.get("after", 0))


async def read(client: Client) -> str:
    with anyio.fail_after(60):
        async with client.stream("x") as stream:
            return "".join([text async for text in stream])


async def test_cut_at_every_message() -> None:
    async def script(peer: Peer) -> None:
        """Say one thing more on each connection."""
        spoken = 0
        say = peer.say

        async def say_and_cut(kind: str, **fields: Any) -> None:
            nonlocal spoken
            await say(kind, **fields)
            spoken += 1
            if spoken > 2 + peer.number % 4:
                peer.cut()

        peer.pongs = False
        peer.say = say_and_cut  # type: ignore[method-assign]
        await serve_text(peer)

    with ScriptedServer(script) as server:
        async with connect(server.url, patience=QUICK) as client:
            assert await read(client) == TEXT
            stream = client.stream("again")
            ids = [one async for event in stream.events() for one in event.token_ids]
            assert ids == list(range(1, len(TEXT) + 1))
            assert stream.result.text == TEXT
        assert len(server.peers) > 20


async def test_cut_at_every_byte() -> None:
    async def script(peer: Peer) -> None:
        await serve_text(peer, "abc")

    with ScriptedServer(script) as server:
        for share in range(200, 1100, 31):  # from the middle of the handshake to behind the end

            def budget(number: int, share: int = share) -> int | None:
                return share if number == 1 else None

            with CuttingProxy(server.port, budget) as proxy:
                async with connect(proxy.url, patience=QUICK) as client:
                    proxy.cut()
                    assert await read(client) == "abc"


async def test_a_silent_server_is_left_and_found_again() -> None:
    async def script(peer: Peer) -> None:
        peer.pongs = peer.number > 0
        if peer.number == 0:
            await peer.delta(await peer.start(), 1, "a")
            await peer.linger()
        await serve_text(peer, "abc")

    patience = Patience(heartbeat=0.05, silence=0.3, first_delay=0.001)
    with ScriptedServer(script) as server:
        async with connect(server.url, patience=patience) as client:
            assert await read(client) == "abc"
        # On a busy machine the second one may seem to be silent as well.
        resumed = next(message for peer in server.peers[1:] for message in peer.heard)
        assert (resumed["type"], resumed["after"]) == ("resume", 1)


@for_each(
    "nonsense",
    [
        "{",
        b"\x00binary",
        '{"type": "delta", "id": 7}',
        '{"type": "delta", "id": "ID", "seq": 9, "text": "gap"}',
        '{"type": "delta", "id": "ID", "seq": 2, "first_seq": 1, "text": "half old"}',
        '{"type": "delta", "id": "ID", "seq": 2, "text": "b", "unheard": "of"}',
    ],
)
async def test_a_broken_message_costs_a_connection_and_no_text(nonsense: str | bytes) -> None:
    async def script(peer: Peer) -> None:
        if peer.number:
            return await serve_text(peer, "abc")
        name = await peer.start()
        await peer.delta(name, 1, "a")
        said = nonsense.replace("ID", name) if isinstance(nonsense, str) else nonsense
        await peer.connection.send(said)
        await peer.linger()

    with ScriptedServer(script) as server:
        async with connect(server.url, patience=QUICK) as client:
            assert await read(client) == "abc"
        assert len(server.peers) == 2


async def test_unknown_and_repeated_messages_are_skipped() -> None:
    async def script(peer: Peer) -> None:
        name = await peer.start()
        await peer.say("weather", id=name, sun=True)
        for seq, text in ((1, "a"), (1, "a"), (2, "b"), (1, "a"), (2, "b"), (3, "c")):
            await peer.delta(name, seq, text)
        await peer.delta("somebody", 1, "else")
        await peer.done(name, 4)
        await peer.linger()

    with ScriptedServer(script) as server:
        async with connect(server.url) as client:
            assert await read(client) == "abc"
        assert len(server.peers) == 1


async def test_a_request_that_was_not_accepted_is_sent_again() -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.hello()
            await peer.hear()
            return peer.cut()
        await serve_text(peer, "abc")

    with ScriptedServer(script) as server:
        async with connect(server.url, patience=QUICK) as client:
            assert await read(client) == "abc"
        first, second = (peer.heard[0] for peer in server.peers)
        assert first["type"] == second["type"] == "generate"
        assert first["id"] != second["id"]


async def test_a_server_that_stays_away_fails_the_streams_and_later_ones_try_anew() -> None:
    patience = Patience(outage=0.2, first_delay=0.001, longest_delay=0.02)

    async def script(peer: Peer) -> None:
        if peer.number:
            return await serve_text(peer, "abc")
        name = await peer.start()
        await peer.delta(name, 1, "a")
        await peer.linger()

    with ScriptedServer(script) as server:
        with CuttingProxy(server.port) as proxy:
            async with connect(proxy.url, patience=patience) as client:
                with anyio.fail_after(60):
                    stream = client.stream("x")
                    assert await anext(stream) == "a"
                    proxy.refuse = True
                    proxy.cut()
                    with pytest.raises(ConnectionLostError):
                        await anext(stream)
                    assert stream.result.text == "a"
                    assert stream.result.finish_reason == "error"
                    with pytest.raises(ConnectionLostError):
                        await anext(client.stream("y"))
                    proxy.refuse = False
                    assert await read(client) == "abc"
                    assert client.is_healthy


async def test_an_answer_that_the_server_forgot_is_lost() -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            name = await peer.start()
            await peer.delta(name, 1, "a")
            return peer.cut()
        await peer.hello()
        name = (await peer.hear())["id"]
        await peer.say("error", id=name, code="resume_unknown", message="who?")
        await peer.linger()

    with ScriptedServer(script) as server:
        async with connect(server.url, patience=QUICK) as client:
            with pytest.raises(ConnectionLostError, match="who"):
                await read(client)


async def test_dead_engine_raises_engine_died_error() -> None:
    async def script(peer: Peer) -> None:
        name = await peer.start()
        await peer.say("error", id=name, code="engine_dead", message="it died")
        await peer.linger()

    with ScriptedServer(script) as server:
        async with connect(server.url) as client:
            with pytest.raises(EngineDiedError):
                await read(client)
            assert not client.is_healthy


async def test_a_stream_left_while_there_is_no_connection_is_cancelled_later() -> None:
    told = threading.Event()

    async def script(peer: Peer) -> None:
        if peer.number == 0:
            await peer.delta(await peer.start(), 1, "a")
            return await peer.linger()
        await peer.hello()
        await peer.hear()
        await peer.hear()
        told.set()
        await peer.linger()

    with ScriptedServer(script) as server:
        with CuttingProxy(server.port) as proxy:
            async with connect(proxy.url, patience=QUICK) as client:
                stream = client.stream("x")
                assert await anext(stream) == "a"
                proxy.refuse = True
                proxy.cut()
                stream.cancel()
                with anyio.fail_after(60):
                    assert [text async for text in stream] == []
                assert stream.result.finish_reason == "cancelled"
                proxy.refuse = False
                assert await anyio.to_thread.run_sync(told.wait, 60)
        kinds = [message["type"] for message in server.peers[1].heard]
    assert kinds == ["resume", "cancel"]


async def test_no_hello_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    # The handshake before it may take as long as it needs.
    patient = partial(open_socket_in, 60.0)
    monkeypatch.setattr("asyncgen_apps.websocket.client.link.open_socket", patient)

    async def script(peer: Peer) -> None:
        peer.pongs = False
        await peer.linger()

    with ScriptedServer(script) as server, anyio.fail_after(60):
        with pytest.raises(ConnectionLostError, match="did not greet"):
            async with connect(server.url, patience=Patience(open=0.2)):
                raise AssertionError("connected")


def open_socket_in(seconds: float, url: str, **options: Any) -> AbstractAsyncContextManager[Socket]:
    """The real one, with more time."""
    return open_socket(url, **{**options, "open_seconds": seconds})


async def test_another_protocol_is_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.connection.send("220 mail.example ESMTP")
        await peer.linger()

    with ScriptedServer(script) as server:
        with pytest.raises(ConnectionLostError, match=r"asyncgen\.v1"):
            async with connect(server.url):
                raise AssertionError("connected")


async def test_wrong_token_fails_at_once() -> None:
    def refuse(request: Request) -> Response | None:
        if request.headers.get("Authorization") == "Bearer good":
            return None
        return Response(http.HTTPStatus.UNAUTHORIZED, "No", Headers(), b"")

    with ScriptedServer(lambda peer: serve_text(peer, "abc"), refuse) as server:
        for token in ("bad", None):
            with pytest.raises(UnauthorizedError):
                async with connect(server.url, token=token):
                    raise AssertionError("connected")
        async with connect(server.url, token="good") as client:
            assert await read(client) == "abc"


async def test_a_server_that_waits_for_a_token_is_made_to_say_so() -> None:
    async def script(peer: Peer) -> None:
        await peer.connection.recv()
        await peer.say("error", code="not_authenticated", message="who are you?")
        await peer.connection.close(1008)

    with ScriptedServer(script) as server:
        with pytest.raises(UnauthorizedError, match="who are you"):
            async with connect(server.url):
                raise AssertionError("connected")


async def test_a_token_that_is_no_longer_good_fails_the_streams_at_once() -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            name = await peer.start()
            await peer.delta(name, 1, "a")
            return peer.cut()
        await peer.say("error", code="unauthorized", message="the token has expired")
        await peer.connection.close(1008)

    with ScriptedServer(script) as server:
        async with connect(server.url, patience=QUICK) as client:
            with pytest.raises(UnauthorizedError, match="expired"):
                await read(client)


async def test_a_full_server_says_when_to_come_back() -> None:
    async def script(peer: Peer) -> None:
        await peer.say("error", code="overloaded", message="1 connection", retry_after=3.5)
        await peer.connection.close(1013)

    with ScriptedServer(script) as server:
        with pytest.raises(OverloadedError, match="1 connection") as caught:
            async with connect(server.url):
                raise AssertionError("connected")
    assert caught.value.retry_after == 3.5


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_patience_is_above_zero(anyio_backend: str) -> None:
    with pytest.raises(InvalidRequestError, match="silence"):
        Patience(silence=0.0)


async def test_all_servers_with_dead_engines_are_the_end_of_a_stream() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        name = (await peer.hear())["id"]
        await peer.say("error", id=name, code="engine_dead", message="it died")
        await peer.linger()

    with ScriptedServer(script) as one, ScriptedServer(script) as two:
        async with connect([one.url, two.url], patience=QUICK) as client:
            with anyio.fail_after(60), pytest.raises(EngineDiedError, match="it died"):
                await client.generate("x")
            assert len(one.peers) + len(two.peers) == 2
            with anyio.fail_after(60), pytest.raises(EngineDiedError):
                await client.generate("y")  # asked anew


async def test_servers_that_leave_one_after_the_other_are_asked_as_long_as_an_outage() -> None:
    async def script(peer: Peer) -> None:
        await peer.hello()
        name = (await peer.hear())["id"]
        await peer.say("error", id=name, code="draining", message="leaving")
        await peer.linger()

    patience = Patience(first_delay=0.001, longest_delay=0.01, outage=0.05)
    with ScriptedServer(script) as one, ScriptedServer(script) as two:
        async with connect([one.url, two.url], patience=patience) as client:
            with anyio.fail_after(60), pytest.raises(EngineClosedError, match="leaving"):
                await client.generate("x")


async def test_a_full_server_is_asked_again_on_the_same_connection() -> None:
    """Another stream is not disturbed by it."""
    cut = threading.Event()

    async def script(peer: Peer) -> None:
        await peer.hello(takes_over=True)
        if not cut.is_set():
            name = (await peer.hear())["id"]
            await peer.accept(name)
            cut.set()
            peer.cut()
        resumed, other = await peer.hear(), await peer.hear()
        await peer.say("error", id=resumed["id"], code="resume_unknown", message="?")
        assert "request" in await peer.hear()
        await peer.accept(other["id"])
        full = {"code": "overloaded", "message": "full", "retry_after": 0.01}
        await peer.say("error", id=resumed["id"], **full)
        again = await peer.hear()
        assert (again["type"], again["id"]) == ("resume", resumed["id"])
        await peer.accept(resumed["id"])
        await peer.answer(other["id"], TEXT)
        await peer.answer(resumed["id"], TEXT)
        await peer.linger()

    texts: list[str] = []
    with ScriptedServer(script) as server, anyio.fail_after(60):
        async with connect(server.url, patience=QUICK) as client, anyio.create_task_group() as both:

            async def one() -> None:
                texts.append(await read(client))

            both.start_soon(one)
            await anyio.to_thread.run_sync(cut.wait)
            both.start_soon(one)
    assert texts == [TEXT, TEXT]
    assert len(server.peers) == 2


async def test_one_server_that_refuses_the_token_does_not_end_the_wait_for_another() -> None:
    def refuse(_: Request) -> Response | None:
        return Response(http.HTTPStatus.UNAUTHORIZED, "no", Headers(), b"")

    down = threading.Event()

    def refuse_while_down(_: Request) -> Response | None:
        if not down.is_set() or len(other.requests) > 4:
            return None
        return Response(http.HTTPStatus.BAD_GATEWAY, "no", Headers(), b"")

    async def script(peer: Peer) -> None:
        await peer.hello()
        name = (await peer.hear())["id"]
        await peer.accept(name)
        if not down.is_set():
            down.set()
            peer.cut()
        await peer.answer(name, TEXT)
        await peer.linger()

    with (
        ScriptedServer(serve_text, refuse) as other,
        ScriptedServer(script, refuse_while_down) as one,
    ):
        async with connect([one.url, other.url], patience=QUICK) as client:
            assert await read(client) == TEXT
