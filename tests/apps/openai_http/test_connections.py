"""Test the limits of unauthenticated connections; each attack over a real socket."""

from __future__ import annotations

import json
import socket
import time
import tracemalloc
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect

from asyncgen_apps.openai_http import connections
from asyncgen_apps.serving import sockets
from tests.apps.openai_http.plain import plain, reply, request, rest
from tests.apps.openai_http.running import PATIENCE, running, wait_for
from tests.apps.openai_http.test_answer import scripted
from tests.cases import for_each, some

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.plain import Plain

UVLOOP = pytest.param({"use_uvloop": True}, id="uvloop")
ASYNCIO = pytest.param({}, id="asyncio")
SHORT = 0.4
"""Seconds for a head where it must not come in time."""


@pytest.fixture(scope="module")
def served() -> Iterator[Plain]:
    """A server with the limits that it has by default."""
    with plain() as one:
        yield one


def code(answer: bytes) -> Any:
    """The code of an error."""
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


# Heads that are too long.


def flood(wire: socket.socket, start: bytes, piece: bytes, count: int) -> tuple[bytes, int]:
    """Send a head without an end; return what the server said, and the bytes that it took."""
    taken = 0
    try:
        wire.sendall(start)
        for _ in range(count):
            taken += wire.send(piece)
    except ConnectionError:
        pass
    return rest(wire), taken


@for_each(
    ("start", "piece"),
    [
        pytest.param(b"GET / HTTP/1.1\r\n", b"x-junk: " + b"a" * 8000 + b"\r\n", id="headers"),
        pytest.param(b"GET / HTTP/1.1\r\nx-junk: ", b"a" * 8192, id="a line without an end"),
        pytest.param(b"GET /", b"a" * 8192, id="a path without an end"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"a", id="a name without an end"),
        pytest.param(b"\r\n", b"\r\n" * 4096, id="empty lines"),
    ],
)
def test_a_head_without_an_end(served: Plain, start: bytes, piece: bytes) -> None:
    """It is refused while it comes, by its length; what it would hold is let go."""
    piece = piece * (8192 // len(piece)) if len(piece) == 1 else piece
    before = len(served.seen)
    with served.dial() as wire:
        said, taken = flood(wire, start, piece, 50_000_000 // len(piece))
    assert said.startswith(b"HTTP/1.1 431 ")
    assert code(said) == "head_too_large"
    assert taken < 20_000_000  # what fits into the sockets' buffers, and nothing behind it
    assert len(served.seen) == before


def test_a_long_head_takes_no_memory(served: Plain) -> None:
    tracemalloc.start()
    try:
        with served.dial() as wire:
            flood(wire, b"GET / HTTP/1.1\r\n", b"x: " + b"a" * 65536 + b"\r\n", 500)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def padded(size: int) -> bytes:
    """A request whose head has so many bytes."""
    bare = len(request("/", b"x: "))
    return request("/", b"x: " + b"a" * (size - bare))


def test_a_head_may_be_as_long_as_the_limit(served: Plain) -> None:
    with served.dial() as wire:
        for _ in range(3):
            wire.sendall(padded(65536))
            assert reply(wire)[0] == 200
        wire.sendall(padded(65537))
        said = rest(wire)
    assert said.startswith(b"HTTP/1.1 431 ")


def test_a_long_head_in_pieces(served: Plain) -> None:
    content = padded(60_000)
    with served.dial() as wire:
        for start in range(0, len(content), 7000):
            wire.sendall(content[start : start + 7000])
            time.sleep(0.001)
        assert reply(wire)[0] == 200


def test_heads_do_not_add_up(served: Plain) -> None:
    """Neither those of requests one behind the other, nor of many at once, nor bodies."""
    with served.dial() as wire:
        for _ in range(6):
            wire.sendall(padded(30_000))
            assert reply(wire)[0] == 200
        wire.sendall(padded(30_000) * 6)
        assert [reply(wire)[0] for _ in range(6)] == [200] * 6
        wire.sendall(posted(1_000_000))
        assert json.loads(reply(wire)[1])["body"] == 1_000_000


def posted(size: int, path: str = "/", *headers: bytes) -> bytes:
    """A request with a body."""
    length = f"Content-Length: {size}".encode()
    return request(path, length, *headers, method="POST", body=b"b" * size)


def test_many_requests_in_one_write(served: Plain) -> None:
    count = 3000
    with served.dial() as wire:
        wire.sendall(request("/") * count)
        assert [reply(wire)[0] for _ in range(count)] == [200] * count


def test_trailers_without_an_end(served: Plain) -> None:
    start = request("/", b"Transfer-Encoding: chunked", method="POST", body=b"1\r\na\r\n0\r\n")
    with served.dial() as wire:
        _, taken = flood(wire, start, b"x-junk: " + b"a" * 8000 + b"\r\n", 6000)
    assert taken < 20_000_000


# What has to go on as it was.


def test_old_and_careful_clients(served: Plain) -> None:
    with served.dial() as wire:
        wire.sendall(b"GET /old HTTP/1.0\r\n\r\n")
        said = rest(wire)
        assert said.startswith(b"HTTP/1.1 200 ") and b'"/old"' in said
    with served.dial() as wire:
        head = posted(5, "/", b"Expect: 100-continue")
        wire.sendall(head[:-5])
        assert wire.recv(100).startswith(b"HTTP/1.1 100 ")
        wire.sendall(head[-5:])
        assert json.loads(reply(wire)[1])["body"] == 5
    with served.dial() as wire:
        wire.sendall(head.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert rest(wire).startswith(b"HTTP/1.1 200 "), "to HTTP/1.0 it would be the answer"
    with served.dial() as wire:
        wire.sendall(b"what\r\n\r\n")
        assert rest(wire).startswith(b"HTTP/1.1 400 ")


def test_a_stream_of_an_old_client_ends_with_its_connection() -> None:
    """HTTP/1.0 knows no chunks."""
    body = json.dumps({"model": "demo", "prompt": "a", "stream": True}).encode()
    head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    said = {}
    with running(scripted()) as served:
        for version in (b"1.0", b"1.1"):
            with socket.create_connection(("127.0.0.1", served.port), PATIENCE) as wire:
                start = b"POST /v1/completions HTTP/%b\r\nConnection: close\r\n" % version
                wire.sendall(start + head % len(body) + body)
                said[version] = rest(wire)
    headers, _, events = said[b"1.0"].partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding" not in headers
    assert events.startswith(b"data: {") and events.endswith(b"data: [DONE]\n\n")
    assert b"transfer-encoding: chunked" in said[b"1.1"]
    assert events.count(b"data: ") == said[b"1.1"].count(b"data: ")


@pytest.mark.gate
def test_late_part_of_next_head_does_not_end_the_answer() -> None:
    """A part of the next head does not end an answer that takes longer than a head may."""
    with plain(head_seconds=SHORT) as served, served.dial() as wire:
        second = request("/second")
        wire.sendall(request("/wait") + second[:10])
        wait_for(lambda: len(served.seen) == 1)
        time.sleep(3 * SHORT)
        wire.sendall(second[10:])
        served.release()
        assert [json.loads(reply(wire)[1])["path"] for _ in range(2)] == ["/wait", "/second"]


# Connections that say nothing, or too slowly.


@pytest.mark.parametrize("backend", [ASYNCIO, UVLOOP])
def test_silence(backend: dict[str, Any]) -> None:
    """A silent connection gets no answer; one that began is told what was missing."""
    begun = [b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n"]
    with plain(backend=backend, head_seconds=SHORT) as served, ExitStack() as stack:
        wires = [stack.enter_context(served.dial()) for _ in range(4)]
        for wire, sent in zip(wires[1:], begun, strict=True):
            wire.sendall(sent)
        assert rest(wires[0]) == b""
        for wire in wires[1:]:
            said = rest(wire)
            assert said.startswith(b"HTTP/1.1 408 ")
            assert code(said) == "head_timeout"
        assert served.seen == []
        wait_for(lambda: served.get().startswith(b"HTTP/1.1 200 "))


def drip(wire: socket.socket, content: bytes, pause: float = 0.02) -> bool:
    """Send byte by byte; return whether all could be sent."""
    try:
        for byte in content:
            wire.sendall(bytes([byte]))
            time.sleep(pause)
    except ConnectionError:
        return False
    return True


def test_a_head_byte_by_byte() -> None:
    """Each byte is in time; the head is not."""
    with plain(head_seconds=SHORT) as served, served.dial() as wire:
        assert not drip(wire, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000)
        assert served.seen == []


def test_the_second_request_has_a_time_too() -> None:
    with plain(head_seconds=SHORT) as served, served.dial() as wire:
        wire.sendall(request())
        assert reply(wire)[0] == 200
        wire.sendall(b"\r\n")  # ends the idle time, and begins nothing
        assert rest(wire).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_is_too_slow() -> None:
    with plain(head_seconds=SHORT, body_rate=1000) as served:
        with served.dial() as wire:
            wire.sendall(posted(5000)[:-4900])
            said = rest(wire)
        assert said.startswith(b"HTTP/1.1 408 ")
        assert code(said) == "body_timeout"
        with served.dial() as wire:
            wire.sendall(posted(5000)[:-5000])
            assert not drip(wire, b"b" * 5000)


@pytest.mark.gate
def test_a_body_that_is_slow_and_fast_enough() -> None:
    """It takes longer than a window, and pauses."""
    with plain(head_seconds=1.2, body_rate=100) as served, served.dial() as wire:
        content = posted(6000)
        wire.sendall(content[:-6000])
        for _ in range(6):
            time.sleep(0.25)
            wire.sendall(b"b" * 1000)
        assert json.loads(reply(wire)[1])["body"] == 6000


def test_unread_request_body_ends_the_connection() -> None:
    """Though it comes fast: the answer was there before."""
    with plain(head_seconds=SHORT, body_rate=1) as served, served.dial() as wire:
        wire.sendall(posted(10_000_000, "/deaf")[:500])
        assert reply(wire)[0] == 200
        assert not drip(wire, b"b" * 2000)


def test_unread_answer_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps no connection for ever, though nothing more is to be done for it."""
    monkeypatch.setattr(connections, "FLUSH_SECONDS", SHORT)
    with plain() as served, served.dial() as wire:
        wire.sendall(request("/huge", b"Connection: close"))
        wait_for(lambda: len(served.seen) == 1)
        wait_for(lambda: served.num_open == 0)


@pytest.mark.parametrize("path", ["/", "/huge", "/wait"])
def test_unread_answers_give_the_place_back(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where more was asked behind them."""
    monkeypatch.setattr(connections, "FLUSH_SECONDS", SHORT)
    with plain() as served, served.dial() as wire:
        wire.sendall(request("/huge") + request(path))
        wait_for(lambda: len(served.seen) >= 1)
        wait_for(lambda: served.num_open == 0)


# Connections that are too many.


@pytest.mark.gate
@pytest.mark.parametrize("backend", some([ASYNCIO, UVLOOP], 1))
def test_an_idle_connection(backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed when nothing was asked for so long, counted from the last answer."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", 2 * SHORT)
    with plain(backend=backend) as served, served.dial() as wire:
        for _ in range(3):
            wire.sendall(request())
            assert reply(wire)[0] == 200
            time.sleep(SHORT)
        wire.sendall(request("/wait"))
        time.sleep(3 * SHORT)
        served.release()
        assert reply(wire)[0] == 200
        start = time.monotonic()
        assert rest(wire) == b""
        assert time.monotonic() - start > SHORT
        wait_for(lambda: served.num_open == 0)


@pytest.mark.gate
def test_a_websocket_has_no_such_times_and_counts() -> None:
    """Once it is open; it holds a place like any other connection."""
    with running(scripted(), head_seconds=1, max_connections=1) as served:
        with connect(f"ws://127.0.0.1:{served.port}/v1/stream", compression=None) as wire:
            assert json.loads(wire.recv(PATIENCE))["type"] == "hello"
            time.sleep(1.5)
            assert served.request("GET", "/v1/models").status == 503
            wire.send(json.dumps({"type": "ping", "nonce": 1}))
            assert json.loads(wire.recv(PATIENCE))["type"] == "pong"
        wait_for(lambda: served.request("GET", "/v1/models").status == 200)


@pytest.mark.parametrize("backend", [ASYNCIO, UVLOOP])
def test_too_many_connections(backend: dict[str, Any]) -> None:
    """Those beyond hear how the server is, and nothing else; then it goes on."""
    with plain(backend=backend, max_connections=3) as served, ExitStack() as stack:
        inside = [stack.enter_context(served.dial()) for _ in range(3)]
        wait_for(lambda: served.num_open == 3)
        for _ in range(2 * sockets.RESERVE):
            for path in ("/health", "/ready"):
                assert b'"path"' in served.get(path)
        with served.dial() as wire:
            wire.sendall(posted(100, "/v1/completions"))
            said = rest(wire)  # it is closed, though nobody asked for that
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in said
        assert code(said) == "overloaded"
        with served.dial() as wire:
            wire.sendall(upgrade())
            assert rest(wire).startswith(b"HTTP/1.1 503 ")
        inside[0].sendall(request("/inside"))
        assert reply(inside[0])[0] == 200
        inside[1].close()
        wait_for(lambda: served.num_open == 2)
        assert served.get("/v1/models").startswith(b"HTTP/1.1 200 ")


def upgrade() -> bytes:
    """The head of a WebSocket."""
    return request(
        "/v1/stream",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )


def test_silent_sockets_beyond_the_limit_do_not_block_others() -> None:
    with plain(max_connections=2) as served, ExitStack() as stack:
        silent = [stack.enter_context(served.dial()) for _ in range(3 * sockets.RESERVE)]
        wait_for(lambda: served.num_open == 2 + sockets.RESERVE)
        assert b'"path"' in served.get("/health")
        for wire in silent:
            wire.close()
        wait_for(lambda: served.num_open == 0)
        assert served.get("/v1/models").startswith(b"HTTP/1.1 200 ")


def test_the_reserve_is_never_left() -> None:
    """While every place is in use, one more connection is cut."""
    with plain(max_connections=1) as served, ExitStack() as stack:
        for _ in range(1 + sockets.RESERVE):
            wire = stack.enter_context(served.dial())
            wire.sendall(request("/health", b"Content-Length: 5", method="POST"))
        wait_for(lambda: len(served.seen) == 1 + sockets.RESERVE)
        assert served.get("/health") == b""
