"""Handshakes of every shape get the same answer on both ports, and leave their places."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from websockets.frames import Opcode

from tests.apps.openai_http.running import Running, running
from tests.apps.websocket.test_both_ports import endless
from tests.apps.websocket.wires import (
    KEY,
    LOOPS,
    PORTS,
    Wire,
    frames,
    is_on_uvloop,
    read_all,
    wire_to,
)
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = (
    "GET /v1/stream HTTP/1.1",
    "Host: 127.0.0.1",
    "Upgrade: websocket",
    "Connection: Upgrade",
    KEY,
    "Sec-WebSocket-Version: 13",
)
MANY = ["Sec-WebSocket-{}: " + ",".join(["a"] * 2000)] * 5


@pytest.fixture(scope="module", params=LOOPS)
def one(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(
        endless, max_connections=8, max_requests=8, head_seconds=2.0, uvloop=is_on_uvloop(request)
    ) as found:
        yield found


def head(*more: str, **changed: str | None) -> bytes:
    """Write a head: ``None`` leaves a line out, a text takes its place."""
    lines = [*PLAIN, *more]
    for name, line in changed.items():
        place = next(n for n, each in enumerate(lines) if name in each.lower().replace("-", "_"))
        lines[place : place + 1] = [] if line is None else [line]
    return "\r\n".join([*lines, "", ""]).encode()


HEADS: dict[str, tuple[bytes, int]] = {
    "plain": (head(), 101),
    "folded line": (head("X-A: 1\r\n  folded"), 400),
    "folded key": (head(key="Sec-WebSocket-Key:\r\n dGhlIHNhbXBsZSBub25jZQ=="), 400),
    "key twice": (head(KEY), 400),
    "no key": (head(key=None), 400),
    "short key": (head(key="Sec-WebSocket-Key: AAAA"), 400),
    "odd key": (head(key="Sec-WebSocket-Key: !!!!"), 400),
    "version twice": (head("Sec-WebSocket-Version: 13"), 400),
    "no version": (head(version=None), 400),
    "old version": (head(version="Sec-WebSocket-Version: 8"), 400),
    "odd version": (head(version="Sec-WebSocket-Version: x"), 400),
    "upgrade twice": (head("Upgrade: websocket"), 426),
    "no upgrade": (head(upgrade=None), 426),
    "another upgrade": (head(upgrade="Upgrade: h2c"), 426),
    "upgrade to either": (head(upgrade="Upgrade: h2c, websocket"), 426),
    "no connection": (head(connection=None), 426),
    "connection closed": (head(connection="Connection: close"), 426),
    "connection kept, too": (head(connection="Connection: keep-alive, Upgrade"), 101),
    "POST": (head(get="POST /v1/stream HTTP/1.1"), 405),
    "HEAD": (head(get="HEAD /v1/stream HTTP/1.1"), 405),
    "chunks": (head("Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n", 400),
    "compressed body": (head("Transfer-Encoding: gzip"), 400),
    "identity": (head("Transfer-Encoding: identity"), 400),
    "length and chunks": (head("Content-Length: 5", "Transfer-Encoding: chunked"), 400),
    "no body": (head("Content-Length: 0"), 101),
    "long body": (head("Content-Length: 99999999"), 400),
    "encoding without a body": (head("Content-Encoding: gzip"), 101),
    "cookie below the limit": (head("Cookie: " + "x" * 7_000), 101),
    "cookie beyond all limits": (head("Cookie: " + "x" * 70_000), 431),
    "protocols": (head(*(line.format("Protocol") for line in MANY)), 400),
    "protocols and ours": (
        head(
            *(line.format("Protocol") for line in MANY),
            "Sec-WebSocket-Protocol: asyncgen.v1",
        ),
        101,
    ),
    "odd protocols": (head("Sec-WebSocket-Protocol: ,,;"), 400),
    "protocol twice": (head("Sec-WebSocket-Protocol: asyncgen.v1, asyncgen.v1"), 101),
    "compression": (head("Sec-WebSocket-Extensions: permessage-deflate"), 101),
    "odd extensions": (head("Sec-WebSocket-Extensions: ;;;"), 101),
    "extensions": (head(*(line.format("Extensions") for line in MANY)), 101),
    "zero byte": (head("X-A: a\0b"), 400),
    "bytes that are no text": (head().replace(b"\r\n\r\n", b"\r\nX-A: \xff\xfe\r\n\r\n"), 101),
    "line feeds alone": (head().replace(b"\r\n", b"\n"), 400),
    "space before the colon": (head("X-A : 1"), 400),
    "no colon": (head("XA"), 400),
    "no host": (head(host=None), 400),
    "host twice": (head("Host: 127.0.0.1"), 400),
    "two hosts": (head("host: b"), 400),
    "odd host": (head(host="Host: a b"), 400),
    "whole address": (head(get="GET http://127.0.0.1/v1/stream HTTP/1.1"), 404),
    "another path": (head(get="GET /v1/streams HTTP/1.1"), 404),
    "escaped path": (head(get="GET /v1/%73tream HTTP/1.1"), 404),
    "path with dots": (head(get="GET /x/../v1/stream HTTP/1.1"), 404),
}


def answer(wire: socket.socket) -> bytes:
    """Read the head of an answer; one that ends there may keep its connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = wire.recv(65536)
        assert piece, received
        received += piece
    return received.partition(b"\r\n\r\n")[0]


@for_each("port", PORTS)
@for_each("name", HEADS)
def test_each_handshake(one: Running, port: str, name: str) -> None:
    data, status = HEADS[name]
    with wire_to(one, port) as wire:
        wire.sendall(data)
        head = answer(wire)
        assert head.startswith(f"HTTP/1.1 {status} ".encode()), (port, head)
        assert b"extensions" not in head.lower()
        if status == 426:
            assert b"upgrade: websocket" in head.lower()


@for_each("port", PORTS)
def test_http_1_0_opens_no_websocket(one: Running, port: str) -> None:
    """Its clients cannot change to another protocol: the offer is not read, or refused."""
    with wire_to(one, port) as wire:
        wire.sendall(head(get="GET /v1/stream HTTP/1.0"))
        status = 426 if port == "port" else 505
        assert answer(wire).startswith(f"HTTP/1.1 {status} ".encode())


@for_each("port", PORTS)
def test_none_keeps_a_place(one: Running, port: str) -> None:
    with Wire(one, port) as wire:
        assert wire.ask(type="ping", nonce=1) == {"type": "pong", "nonce": 1}


@for_each("early", [frames(Opcode.PING, 1, b"early"), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
@for_each("cut", [0, 1, 3, 70])
def test_what_comes_before_the_answer_waits_for_it(
    one: Running, early: bytes, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A client must wait; the answer is whole nonetheless, and nothing fails."""
    whole = head() + early
    with wire_to(one, "ws_port") as wire:
        if cut:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.sendall(whole[:-cut])
        wire.sendall(whole[-cut:])
        wire.shutdown(socket.SHUT_WR)
        received = read_all(wire)
    assert received.startswith(b"HTTP/1.1 101 ")
    assert frames_behind(received), received
    assert not [record for record in caplog.records if record.exc_info]


def frames_behind(received: bytes) -> bytes:
    """Return what follows the head of an answer."""
    return received.partition(b"\r\n\r\n")[2]
