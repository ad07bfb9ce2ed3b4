"""The laws of sockets, on the port of the HTTP server and on a port of streams alone."""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from websockets.frames import Opcode
from websockets.sync.client import connect

from asyncgen import AsyncLLM
from asyncgen_apps.serving.read_budget import ReadBudget
from asyncgen_apps.websocket.messages import SUBPROTOCOL
from tests.apps.openai_http.running import PATIENCE, Running, running
from tests.apps.websocket.wires import (
    LOOPS,
    PORTS,
    frames,
    handshake,
    is_on_uvloop,
    opened,
    reset,
    wire_to,
)
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPT: dict[str, Any] = {"type": "generate", "id": "a", "token_ids": [1]}


def endless() -> AsyncLLM:
    """An engine whose model babbles until it is stopped."""
    return AsyncLLM(TableModel(context_length=100_000), tokenizer=byte_tokenizer())


@pytest.fixture(scope="module", params=LOOPS)
def one(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(
        endless, max_connections=8, max_requests=8, head_seconds=2.0, uvloop=is_on_uvloop(request)
    ) as found:
        yield found


@contextmanager
def client(one: Running, port: str) -> Iterator[Any]:
    """Connect, and read the hello."""
    url = f"ws://127.0.0.1:{getattr(one, port)}/v1/stream"
    with connect(url, subprotocols=[SUBPROTOCOL], compression=None) as found:  # type: ignore[list-item]
        assert get(found)["type"] == "hello"
        yield found


def get(found: Any) -> Any:
    return json.loads(found.recv(PATIENCE))


def send(found: Any, **message: Any) -> None:
    found.send(json.dumps(message))


def ask(found: Any, **message: Any) -> Any:
    send(found, **message)
    return get(found)


@for_each("port", PORTS)
@for_each("other", PORTS)
@for_each("is_reset", [True, False])
def test_request_of_a_broken_connection_is_resumed_on_either_port(
    one: Running, port: str, other: str, is_reset: bool
) -> None:
    with client(one, port) as first:
        accepted = ask(first, **PROMPT)
        while (delta := get(first))["type"] != "delta":
            pass
        wire = first.socket
        if is_reset:
            reset(wire)
        else:
            wire.shutdown(socket.SHUT_WR)
        token, after = accepted["resume_token"], delta["seq"]
        with client(one, other) as second:
            answer = ask(second, type="resume", id="b", resume_token=token, after=after)
            assert answer["type"] == "accepted", (port, other, answer)
            send(second, type="cancel", id="b")
    one.wait_idle()


@for_each("port", PORTS)
def test_message_of_too_many_fragments_is_refused(one: Running, port: str) -> None:
    wire = opened(one, port)
    data = frames(Opcode.TEXT, 1, fin=False) + frames(Opcode.CONT, 17_000, fin=False)
    wire.sendall(data)
    received = b""
    while piece := wire.recv(65536):
        received += piece
    assert struct.pack("!H", 1009) + b"too many fragments" in received
    wire.close()


ODD = [
    handshake(*(f"X-{number}: 1" for number in range(200))),
    handshake(path="/v1/stream?" + "x" * 20_000),
    handshake("Cookie: " + "x" * 9_000),
    handshake("Content-Length: 5") + b"hello",
]


@for_each("port", PORTS)
def test_refused_handshakes_are_answered_and_leave_their_places(one: Running, port: str) -> None:
    for _ in range(3):  # more than all places
        wires = [wire_to(one, port) for _ in ODD]
        for wire, head in zip(wires, ODD, strict=True):
            wire.sendall(head)
        for wire in wires:
            received = b""
            while piece := wire.recv(65536):
                received += piece
            assert received.startswith(b"HTTP/1.1 4"), (port, received[:80])
            wire.close()
    with client(one, port):
        pass


@for_each("port", PORTS)
def test_half_a_character_in_a_message_of_any_size(one: Running, port: str) -> None:
    with client(one, port) as found:
        for size in (10, 100_000):
            text = '{"type": "generate", "id": "a", "prompt": "' + "x" * size + '\\ud800"}'
            found.send(text)
            answer = get(found)
            assert (answer["type"], answer["code"]) == ("error", "invalid_json"), (port, size)
            found.send('{"type": "generate", "\\udfff' + "x" * size + '": 1}')
            assert get(found)["code"] == "invalid_json"
        assert ask(found, type="ping", nonce=1)["type"] == "pong"


@for_each("port", PORTS)
def test_unknown_token_leaves_the_running_request_of_that_id(one: Running, port: str) -> None:
    with client(one, port) as found:
        assert ask(found, **PROMPT)["type"] == "accepted"
        send(found, type="resume", id="a", resume_token="nothing", after=0)
        while (message := get(found))["type"] == "delta":
            pass
        assert (message["type"], message["code"]) == ("error", "duplicate_id")
        assert get(found)["type"] == "delta"  # it runs on
        send(found, type="cancel", id="a")
        while (message := get(found))["type"] == "delta":
            pass
        assert message["type"] == "done"


@pytest.mark.gate
@for_each("port", PORTS)
def test_pongs_that_nobody_reads_do_not_fill_the_memory(one: Running, port: str) -> None:
    """The server stops reading; what waits stays below its bound and the socket's."""
    wire = opened(one, port)
    wire.settimeout(0.5)
    flood = frames(Opcode.PING, 1_000, b"x" * 100)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 64 * 2**20:
            sent += wire.send(flood)
    with client(one, port) as other:
        assert ask(other, type="ping", nonce=1)["type"] == "pong"
    reset(wire)


@for_each("port", PORTS)
@for_each("is_reset", [True, False])
def test_who_has_left_takes_no_request_from_who_is_there(
    one: Running, port: str, is_reset: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client sent before it left may be read behind what it asks on its next connection."""
    with client(one, port) as first:
        accepted = ask(first, **PROMPT)
        while (delta := get(first))["type"] != "delta":
            pass
        reset(first.socket)
    resume = {"type": "resume", "resume_token": accepted["resume_token"], "after": delta["seq"]}
    late: list[tuple[Any, bytes]] = []
    take = ReadBudget.take

    def hold_back(budget: ReadBudget, connection: Any, data: bytes) -> None:
        if b"late" in unmasked(data):
            connection.hold()  # as the budget does: the loop does not see that the client leaves
            late.append((connection, data))
        else:
            take(budget, connection, data)

    monkeypatch.setattr(ReadBudget, "take", hold_back)
    with client(one, port) as gone:
        send(gone, id="late", **resume)
        while not late:
            time.sleep(0.001)
        wire = gone.socket
        if is_reset:
            reset(wire)
        else:
            wire.shutdown(socket.SHUT_WR)
        with client(one, port) as last:
            assert ask(last, id="b", **resume)["type"] == "accepted"
            one.call(lambda: take(late[0][0]._budget, *late[0]))
            for _ in range(20):
                assert get(last)["type"] == "delta"
            send(last, type="cancel", id="b")
    one.wait_idle()


def unmasked(data: bytes) -> bytes:
    """Return the text of a short frame of a client."""
    if len(data) < 8:
        return data
    start = {126: 4, 127: 10}.get(data[1] & 127, 2)
    mask, text = data[start : start + 4], data[start + 4 :]
    return bytes(byte ^ mask[number % 4] for number, byte in enumerate(text))
