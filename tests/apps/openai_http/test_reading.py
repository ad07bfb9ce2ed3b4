"""Test what is read of a connection: a little a turn, and that its client leaves."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.openai_http.connections import LimitedProtocol
from asyncgen_apps.openai_http.refusals import MOST_FIELDS
from asyncgen_apps.serving import read_budget
from asyncgen_apps.serving.read_budget import TURN_SECONDS
from asyncgen_apps.websocket.connection import StreamConnection
from tests.apps.openai_http.plain import plain, reply, request, rest
from tests.apps.openai_http.running import PATIENCE, running, wait_for
from tests.apps.openai_http.test_answer import scripted
from tests.apps.openai_http.test_connections import ASYNCIO, UVLOOP, code, posted, upgrade
from tests.cases import for_each, some
from tests.doubles.models import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.apps.openai_http.plain import Plain

CHUNKED = b"Transfer-Encoding: chunked"
SLICES = 4
"""Slices of a turn, where each takes a quarter of its time."""

MOST_SLICES = 2 * SLICES + 1
"""Slices between two looks at the loop: of what was just received, and of what waits."""

CONNECTIONS = 3


@pytest.fixture(scope="module", params=some([UVLOOP, ASYNCIO], 1))
def served(request: pytest.FixtureRequest) -> Iterator[Plain]:
    """A server with the limits that it has by default."""
    with plain(backend=request.param) as one:
        yield one


# A little a turn.


class Turns:
    """Counts what each turn of a server's loop parses; every slice takes a quarter of its time."""

    def __init__(self, served: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        monkeypatch.setattr(read_budget, "perf_counter", lambda: self.now)
        self.slices = [0]
        self.longest = 0
        self.is_over = False
        feed = LimitedProtocol.feed

        def counted(connection: LimitedProtocol, data: bytes) -> None:
            self.slices[-1] += 1
            self.longest = max(self.longest, len(data))
            self.now += TURN_SECONDS / SLICES
            feed(connection, data)

        monkeypatch.setattr(LimitedProtocol, "feed", counted)
        served.call(self._turn)

    def _turn(self) -> None:
        self.slices.append(0)
        if not self.is_over:
            asyncio.get_running_loop().call_soon(self._turn)


@pytest.fixture
def turns(served: Plain, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    found = Turns(served, monkeypatch)
    yield found
    found.is_over = True


@pytest.mark.parametrize(
    ("content", "answers", "body"),
    [
        pytest.param(
            request("/", CHUNKED, method="POST", body=b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n"),
            1,
            40_000,
            id="chunks of one byte",
        ),
        pytest.param(
            request("/", CHUNKED, method="POST")
            + (b"1;" + b"a" * 50_000 + b"\r\na\r\n") * 4
            + b"0\r\n\r\n",
            1,
            4,
            id="long extensions of chunks",
        ),
        pytest.param(
            request("/", CHUNKED, method="POST", body=b"1\r\na\r\n0\r\n" + b"a:\r\n" * 12_000)
            + b"\r\n",
            1,
            1,
            id="trailers",
        ),
        pytest.param(request("/", b"x: " + b"a" * 60_000), 1, 0, id="a long head"),
        pytest.param(b"\r\n" * 300 + request("/"), 1, 0, id="empty lines"),
        pytest.param(posted(300_000), 1, 300_000, id="a body"),
        pytest.param(request("/") * 200, 200, 0, id="requests one behind the other"),
        pytest.param(posted(2, "/") * 200, 200, 2, id="bodies one behind the other"),
    ],
)
def test_a_turn_parses_a_few_slices_of_all_connections(
    served: Plain, turns: Turns, content: bytes, answers: int, body: int
) -> None:
    """Whatever they send, and nothing of it is lost."""
    with ExitStack() as stack:
        wires = [stack.enter_context(served.dial()) for _ in range(CONNECTIONS)]
        for wire in wires:
            wire.sendall(content)
        for wire in wires:
            for _ in range(answers):
                status, said = reply(wire)
                assert (status, json.loads(said)["body"]) == (200, body)
    assert 0 < max(turns.slices) <= MOST_SLICES
    assert turns.longest <= LimitedProtocol.most_slice


def test_requests_of_many_connections_at_once(served: Plain, turns: Turns) -> None:
    """They share one budget, however little each of them sends."""
    with ExitStack() as stack:
        wires = [stack.enter_context(served.dial()) for _ in range(64)]
        for wire in wires:
            wire.sendall(request("/"))
        assert [reply(wire)[0] for wire in wires] == [200] * len(wires)
    assert max(turns.slices) <= MOST_SLICES


def test_fields_of_a_trailer_join_no_header(served: Plain) -> None:
    content = b"1\r\na\r\n0\r\nAuthorization: none\r\n\r\n"
    with served.dial() as wire:
        wire.sendall(request("/", CHUNKED, method="POST", body=content))
        assert json.loads(reply(wire)[1])["headers"] == 2
    assert b"authorization" not in dict(served.seen[-1]["headers"])


@for_each(
    ("content", "status", "named"),
    [
        (request("/", *[b"a: b"] * MOST_FIELDS), 431, "too_many_headers"),
        (request("/?" + "a&" * MOST_FIELDS), 414, "too_many_parameters"),
        (
            request("/", CHUNKED, method="POST", body=b"1;" + b"a" * 100_000),
            400,
            "invalid_http",
        ),
        (request("/", CHUNKED, method="POST", body=b"nothing\r\n"), 400, "invalid_http"),
        (b"what\r\n\r\n", 400, "invalid_http"),
        (b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "unknown_host"),
        (b"GET http://a:1/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "unknown_host"),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "invalid_host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400, "invalid_host"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400, "invalid_host"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "invalid_host"),
        (b"GET /health HTTP/1.1\r\nx-a: b\r\n\r\n", 400, "invalid_host"),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "invalid_host"),
        (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "invalid_host"),
        (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400, "invalid_host"),
        (b"GET / HTTP/1.1\r\nHost: \xe9\r\n\r\n", 400, "invalid_host"),
        (b"GET http://a/ HTTP/1.0\r\n\r\n", 400, "unknown_host"),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "unknown_host"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "unknown_version"),
        (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505, "unknown_version"),
    ],
)
def test_what_is_refused_before_the_application(
    served: Plain, content: bytes, status: int, named: str
) -> None:
    with served.dial() as wire:
        wire.sendall(content)
        said = rest(wire)
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert code(said) == named


def test_as_many_fields_as_are_taken(served: Plain) -> None:
    with served.dial() as wire:
        wire.sendall(request("/?" + "a&" * (MOST_FIELDS - 1), *[b"a: b"] * (MOST_FIELDS - 1)))
        assert json.loads(reply(wire)[1])["headers"] == MOST_FIELDS


@for_each("target", [b"http://A/?u=http://b/", b"http://user@a/", b"/http://b/"])
def test_a_target_may_name_its_own_host(served: Plain, target: bytes) -> None:
    with served.dial() as wire:
        wire.sendall(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
        assert reply(wire)[0] == 200


def test_other_protocols_are_not_spoken(served: Plain) -> None:
    """A request that offers another one is answered, and so is what follows it."""
    content = request("/", b"Connection: Upgrade", b"Upgrade: h2c")
    with served.dial() as wire:
        wire.sendall(content * 3)
        assert [reply(wire)[0] for _ in range(3)] == [200] * 3


@for_each("offer", [b"h2c", b"x", b"TLS/1.0, h2c"])
@for_each("is_chunked", [False, True])
@for_each("step", [0, 1])
def test_a_body_behind_an_offer_is_that_of_its_request(
    served: Plain, offer: bytes, is_chunked: bool, step: int
) -> None:
    """Clients of Java offer h2c with each request; what follows the head is no other request."""
    body = request("/smuggled")
    length = b"Content-Length: %d" % len(body)
    if is_chunked:
        length = b"Transfer-Encoding: chunked"
    headers = b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAEA", b"Upgrade: " + offer
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    content = request("/a", *headers, length, b"x-other: 1", method="POST", body=sent)
    before = len(served.seen)
    with served.dial() as wire:
        for piece in [content * 2] if not step else [bytes([one]) for one in content * 2]:
            wire.sendall(piece)
        for _ in range(2):
            status, found = reply(wire)
            assert (status, json.loads(found)["body"]) == (200, len(body)), found
    heads = served.seen[before:]
    assert [head["path"] for head in heads] == ["/a", "/a"]
    assert [name for name, _ in heads[0]["headers"]][-1] == b"x-other"
    assert not {name for name, _ in heads[0]["headers"]} & {b"upgrade", b"connection"}


@for_each("codings", [(b"gzip, chunked",), (b"gzip", b"chunked"), (b"deflate, chunked",)])
def test_other_transfer_codings_are_refused(codings: tuple[bytes, ...]) -> None:
    lines = [b"Transfer-Encoding: " + coding for coding in codings]
    body = b'{"model":"demo","prompt":"a","max_tokens":1}'
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with running(scripted()) as served:
        for more, status in (([b"Transfer-Encoding: chunked"], 200), (lines, 501)):
            wire = socket.create_connection(("127.0.0.1", served.port), PATIENCE)
            headers = b"Content-Type: application/json", b"Connection: close", *more
            with wire:
                wire.sendall(request("/v1/completions", *headers, method="POST", body=sent))
                assert rest(wire).startswith(b"HTTP/1.1 %d " % status)


@for_each("second", [b"gzip", b"identity, br"])
def test_all_content_codings_count(second: bytes) -> None:
    with running(scripted()) as served:
        wire = socket.create_connection(("127.0.0.1", served.port), PATIENCE)
        headers = (
            b"Content-Encoding: identity",
            b"Content-Encoding: " + second,
            b"Connection: close",
        )
        with wire:
            wire.sendall(request("/v1/completions", *headers, b"Content-Length: 0", method="POST"))
            assert rest(wire).startswith(b"HTTP/1.1 415 ")


def test_frames_behind_a_handshake_are_read() -> None:
    """On both ports: those of a client that does not wait for the answer."""
    ping = b"\x89\x80\0\0\0\0"
    with running(scripted()) as served:
        for port in (served.port, served.ws_port):
            for count in (1, 5000):
                wire = socket.create_connection(("127.0.0.1", port))
                with wire, wire.makefile("rb") as file:
                    wire.sendall(upgrade() + ping * count)
                    assert file.readline().startswith(b"HTTP/1.1 101 ")
                    while file.readline() != b"\r\n":
                        pass
                    pongs = 0
                    while pongs < count:
                        first, length = file.read(2)
                        file.read(int.from_bytes(file.read(2)) if length == 126 else length)
                        pongs += first == 0x8A


@for_each("port", ["port", "ws_port"])
def test_nothing_is_received_while_frames_behind_a_handshake_wait(
    port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends faster than frames are parsed waits: what has come would fill the memory."""
    held: set[StreamConnection] = set()
    was_held: list[StreamConnection] = []
    beyond: list[int] = []
    hold, release = StreamConnection.hold, StreamConnection.release
    received = StreamConnection.data_received

    def note_hold(connection: StreamConnection) -> None:
        held.add(connection)
        was_held.append(connection)
        hold(connection)

    def note_release(connection: StreamConnection) -> None:
        held.discard(connection)
        release(connection)

    def note_data(connection: StreamConnection, data: bytes) -> None:
        if connection in held:
            beyond.append(len(data))
        received(connection, data)

    monkeypatch.setattr(StreamConnection, "hold", note_hold)
    monkeypatch.setattr(StreamConnection, "release", note_release)
    monkeypatch.setattr(StreamConnection, "data_received", note_data)
    pongs = (b"\x8a\xfd" + bytes(4 + 125)) * 4000  # nothing answers those
    with running(scripted()) as served:
        with socket.create_connection(("127.0.0.1", getattr(served, port))) as wire:
            wire.sendall(upgrade() + pongs + b"\x88\x80\0\0\0\0")
            while wire.recv(65536):
                pass
    assert was_held
    assert not sum(beyond)


# Clients that leave.


def close(wire: socket.socket) -> None:
    """Leave in order."""
    wire.close()


def half_close(wire: socket.socket) -> None:
    """Send nothing more."""
    wire.shutdown(socket.SHUT_WR)


def reset(wire: socket.socket) -> None:
    """Leave as a process that is killed does."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


@pytest.mark.parametrize("leave", [close, half_close, reset])
@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(request("/second")[:10], id="a part of a head"),
        pytest.param(request("/second"), id="a request"),
        pytest.param(request("/second") * 4000, id="thousands of requests"),
        pytest.param(posted(5000, "/second")[:-10], id="a part of a body"),
    ],
)
def test_a_client_that_leaves_is_noticed_behind_what_it_sent(
    served: Plain, behind: bytes, leave: Callable[[socket.socket], None]
) -> None:
    """At once, though nothing is read behind a request that is not answered."""
    for together in (0, 100):
        seen, left = len(served.seen), len(served.left)
        with served.dial() as wire:
            wire.sendall(request("/watch") + behind[:together])
            wait_for(partial(exceeds, served.seen, seen))
            wire.sendall(behind[together:])
            leave(wire)
            wait_for(partial(exceeds, served.left, left))
        wait_for(lambda: served.num_open == 0)
        assert len(served.seen) == seen + 1  # nothing that follows is begun


def exceeds(found: list[Any], count: int) -> bool:
    """Tell whether there is more than so many."""
    return len(found) > count


def test_a_generation_ends_when_its_client_leaves_behind_another_request() -> None:
    gate = Gate()
    with running(scripted(gate)) as served:
        try:
            wire = served.begin("/completions", {"model": "demo", "prompt": list(range(200))})
            gate.allow(2)
            gate.wait_arrived(3)
            wire.sendall(request("/health") * 2000)
            wire.close()
            wait_for(lambda: served.gate.count == 0)
        finally:
            gate.open()
        served.wait_idle()
        assert gate.arrived <= 4, "of thirteen chunks"
