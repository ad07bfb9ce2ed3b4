"""What clients send and do not finish, or leave behind, is bounded on both ports."""

from __future__ import annotations

import json
import struct
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.websocket import session
from asyncgen_apps.websocket.frames import read_large
from asyncgen_apps.websocket.session import MOST_UNKNOWN
from tests.apps.openai_http.running import PATIENCE, Running, running, wait_for
from tests.apps.websocket.test_both_ports import endless
from tests.apps.websocket.wires import (
    LOOPS,
    MASK,
    PORTS,
    BrokenWire,
    Wire,
    handshake,
    is_on_uvloop,
    odd_frame,
    reset,
    wire_to,
)
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen_apps.serving.shared_budget import SharedBudget

SIZE = 600_000


@pytest.fixture(scope="module", params=LOOPS)
def two(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A server of two keys."""
    with running(endless, api_keys=("a", "b"), uvloop=is_on_uvloop(request)) as found:
        yield found


def service_of(one: Running) -> Any:
    make: Any = one.server.config.ws
    return make.__self__._service


def holds(budget: SharedBudget, used: int) -> bool:
    return budget.used == used


def part(size: int, sent: int) -> bytes:
    """The first bytes of a message."""
    return b"\x81\xff" + struct.pack("!Q", size) + MASK + b" " * sent


def large(kind: str = "ping") -> bytes:
    """A large message, whole; a ping of its size is refused once it is read."""
    wanted = {"type": kind, "nonce": "x" * SIZE}
    return odd_frame(0x81, json.dumps(wanted).encode())


@for_each("port", PORTS)
def test_messages_that_come_share_a_budget(
    two: Running, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(two)
    monkeypatch.setattr(service.large, "most", 2 * 2**20)
    with ExitStack() as stack:
        for count in range(3):
            wire = stack.enter_context(Wire(two, port, "a"))
            wire.socket.sendall(part(SIZE, SIZE - 1))
            wait_for(partial(holds, service.large, (count + 1) * (SIZE - 1)))
        with Wire(two, port, "a") as wire:
            wire.socket.sendall(part(SIZE, SIZE - 1))
            told = wire.get()
            assert told["code"] == "overloaded" and told["retry_after"] == 1.0
            assert "of at most 2 MiB of large messages are read or answered" in told["message"]
            with pytest.raises(BrokenWire) as broken:
                wire.get()
            assert broken.value.args == (1013,)
        with Wire(two, port, "b") as wire:
            wire.socket.sendall(part(200_000, 200_000))
            assert wire.get()["code"] == "invalid_json"  # another client's is read
    wait_for(lambda: service.large.used == 0)
    assert not service.large._held


@for_each("port", PORTS)
def test_samples_share_a_budget(two: Running, port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the first of each request; to its end, however it comes."""
    rows = service_of(two).rows
    monkeypatch.setattr(rows._budget, "most", 16)

    def begin(wire: Wire, name: str, samples: int, words: int = 0) -> None:
        params: dict[str, Any] = {"n": samples, "do_sample": True}
        if words:
            params["bad_words_ids"] = [[5]] * words
        wire.send(type="generate", id=name, token_ids=[1], params=params)

    def end_of(wire: Wire, name: str) -> Any:
        while True:
            told = wire.get()
            if told.get("id") == name and told["type"] in ("accepted", "error"):
                return told

    with Wire(two, port, "a") as wire:
        for count, name in enumerate("pq"):
            begin(wire, name, 8)
            assert end_of(wire, name)["type"] == "accepted"
            assert rows.used == 7 * (count + 1)
        begin(wire, "r", 4)
        refused = end_of(wire, "r")
        assert refused["code"] == "overloaded" and refused["retry_after"] == 1.0
        assert refused["message"].startswith(
            "14 of at most 16 further choices or texts are being answered, 14 of them yours"
        )
        begin(wire, "v", 1, words=64)
        assert end_of(wire, "v")["code"] == "overloaded"
        begin(wire, "s", 1)
        assert end_of(wire, "s")["type"] == "accepted"
        with Wire(two, port, "b") as other:
            begin(other, "t", 3)
            assert end_of(other, "t")["type"] == "accepted"
            other.send(type="cancel", id="t")
            wait_for(lambda: rows.used == 14)
        wire.send(type="cancel", id="p")
        wait_for(lambda: rows.used == 7)
        begin(wire, "u", 4)
        assert end_of(wire, "u")["type"] == "accepted"
    wait_for(lambda: rows.used == 0)
    assert not rows._budget._held


@for_each("port", PORTS)
def test_nobody_knows_who_sends_a_long_first_message(two: Running, port: str) -> None:
    with wire_to(two, port) as plain:
        plain.sendall(handshake())
        assert b" 101 " in plain.recv(4096)
        plain.sendall(part(SIZE, MOST_UNKNOWN + 1))
        received = b""
        while piece := plain.recv(4096):
            received += piece
            if b"\x88" in received and received.endswith(b"not_authenticated"):
                break
        assert b"the first message must be `auth` with a token" in received
        assert struct.pack("!H", 1008) + b"not_authenticated" in received


@for_each("port", PORTS)
def test_what_follows_a_token_at_once_is_read(two: Running, port: str) -> None:
    auth = odd_frame(0x81, b'{"type":"auth","token":"a"}')
    with wire_to(two, port) as plain:
        plain.sendall(handshake() + auth + large())
        received = b""
        while b'"invalid_message"' not in received:
            piece = plain.recv(65536)
            assert piece, received
            received += piece
        assert b'"hello"' in received
    wait_for(lambda: service_of(two).large.used == 0)


@for_each("port", PORTS)
def test_nothing_more_is_read_of_who_has_left(
    two: Running, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, begun, release = service_of(two), threading.Event(), threading.Event()
    calls = []

    def slow(frame: str) -> Any:
        calls.append(len(frame))
        begun.set()
        assert release.wait(PATIENCE)
        return real(frame)

    real = read_large
    monkeypatch.setattr(session, "read_large", slow)
    wires = [Wire(two, port, "a") for _ in range(3)]
    try:
        for wire in wires:
            wire.socket.sendall(large() * 2)
        assert begun.wait(PATIENCE)
        wait_for(lambda: service.large.used > 3 * SIZE)
        for wire in wires:
            reset(wire.socket)
        wait_for(lambda: service.large.used == 0)
    finally:
        release.set()
    wait_for(lambda: service.counters.connections == 0)
    assert len(calls) == 1 and service.large.used == 0


@for_each("port", PORTS)
def test_a_large_request_counts_until_it_has_ended(two: Running, port: str) -> None:
    service = service_of(two)
    with Wire(two, port, "a") as wire:
        wanted = {"type": "generate", "id": "a", "prompt": "x" * 70_000}
        raw = json.dumps(wanted).encode()
        wire.socket.sendall(odd_frame(0x81, raw))
        assert wire.get()["type"] == "accepted"
        wait_for(lambda: service.large.used == len(raw))
        wire.send(type="cancel", id="a")
        while wire.get()["type"] != "done":
            pass
    wait_for(lambda: service.large.used == 0)
