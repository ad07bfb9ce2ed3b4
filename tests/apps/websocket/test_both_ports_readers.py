"""Clients that flood, read nothing or resume what is not theirs, on both ports."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from websockets.frames import Opcode

from asyncgen_apps.websocket.client.client import Patience, connect
from tests.apps.openai_http.running import PATIENCE, Running, reference, running, wait_for
from tests.apps.websocket.cutting import CuttingProxy
from tests.apps.websocket.test_both_ports import endless
from tests.apps.websocket.wires import (
    LOOPS,
    PORTS,
    BrokenWire,
    Wire,
    frames,
    handshake,
    is_on_uvloop,
    odd_frame,
    opened,
    reset,
    wire_to,
)
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PLACES = 4
_FLOOD_BYTES = 50_000
_LONGEST_TURN = 0.1
"""Seconds of processor time of a turn of the loop; the law for others' streams is 0.25 s."""


@pytest.fixture(scope="module", params=LOOPS)
def one(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(
        endless,
        max_connections=16,
        max_requests=16,
        send_buffer=16_384,
        uvloop=is_on_uvloop(request),
    ) as found:
        yield found


def words(**message: Any) -> bytes:
    """Write a message as a frame."""
    return frames(Opcode.TEXT, 1, json.dumps(message).encode())


FLOODS: dict[str, bytes] = {
    "pings": odd_frame(0x89),
    "pings with data": odd_frame(0x89, b"x" * 100),
    "pongs": odd_frame(0x8A),
    "empty messages": odd_frame(0x81),
    "bytes": odd_frame(0x82),
    "empty parts": odd_frame(0x01) + odd_frame(0x00) * 50 + odd_frame(0x80),
    "letters": odd_frame(0x81, b"x"),
    "numbers": odd_frame(0x81, b"1"),
    "lists": odd_frame(0x81, b"[" * 100),
    "messages that ping": words(type="ping", nonce=1),
    "cancels": words(type="cancel", id="x"),
    "tokens": words(type="auth", token="x"),
    "resumes": words(type="resume", id="x", resume_token="x", after=0),
    "requests of nothing": words(type="generate", id="x", token_ids=[]),
    "requests that are refused": words(type="generate", id="x", prompt="x", params={"x": 1}),
    "keys twice": odd_frame(0x81, b'{"type":"ping","nonce":1,"nonce":1}'),
}


class Turns:
    """Measures the processor time of each turn of a server's loop."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last: float | None = None
        self._is_over = False

    def __call__(self) -> None:
        import asyncio

        now = time.thread_time()
        if self._last is not None:
            self.longest = max(self.longest, now - self._last)
        self._last = now
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self)

    def end(self) -> float:
        """Stop, and return the longest turn."""
        self._is_over = True
        return self.longest


def push(wire: socket.socket, data: bytes) -> None:
    """Send until the server takes no more, or all is sent."""
    with suppress(OSError):
        wire.sendall(data)


def drink(wire: socket.socket) -> None:
    """Read and throw away until the connection ends."""
    with suppress(OSError):
        while wire.recv(65536):
            pass


@contextmanager
def flooding(
    one: Running, port: str, unit: bytes, clients: int
) -> Iterator[list[threading.Thread]]:
    """Flood by some clients that read what they are answered; gives the threads that send."""
    wires = [opened(one, port) for _ in range(clients)]
    data = unit * (_FLOOD_BYTES // len(unit))
    senders = [threading.Thread(target=push, args=(wire, data)) for wire in wires]
    readers = [threading.Thread(target=drink, args=(wire,)) for wire in wires]
    for thread in senders + readers:
        thread.start()
    try:
        yield senders
    finally:
        for wire in wires:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
        for thread in senders + readers:
            thread.join(PATIENCE)
        for wire in wires:
            wire.close()


def flood_and_measure(
    one: Running, port: str, name: str, *, clients: int = 1, size: int = _FLOOD_BYTES
) -> float:
    """Flood beside a client that asks and is answered; return the longest turn of the loop."""
    turns = Turns()
    data = FLOODS[name] * (size // len(FLOODS[name]))
    with Wire(one, port) as bystander, flooding(one, port, data, clients) as senders:
        one.call(turns)
        asked = 0
        while asked < 20 or any(sender.is_alive() for sender in senders):
            assert bystander.ask(type="ping", nonce=asked) == {"type": "pong", "nonce": asked}
            asked += 1
        return turns.end()


@for_each("port", PORTS)
@for_each("name", ["pings", "pongs", "empty parts", "letters"])
def test_flood_leaves_a_bystander_unharmed(one: Running, port: str, name: str) -> None:
    assert flood_and_measure(one, port, name) < _LONGEST_TURN


@pytest.mark.gate
@pytest.mark.parametrize("port", PORTS)
@for_each("name", FLOODS)
def test_each_flood_by_some(one: Running, port: str, name: str) -> None:
    assert flood_and_measure(one, port, name, clients=6, size=200_000) < _LONGEST_TURN


# Who reads nothing.


def deaf(one: Running, port: str) -> socket.socket:
    """Connect with as small a window as there is, and read nothing but the handshake."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    wire.settimeout(PATIENCE)
    wire.connect(("127.0.0.1", getattr(one, port)))
    wire.sendall(handshake())
    assert b" 101 " in wire.recv(64)
    return wire


STALLED: dict[str, bytes] = {
    "pings": FLOODS["pings with data"],
    "refused messages": FLOODS["letters"],
    "refused bytes": FLOODS["bytes"],
    "keys twice": FLOODS["keys twice"],
    "pings as messages": FLOODS["messages that ping"],
    "unknown tokens": FLOODS["resumes"],
}


@pytest.mark.gate
@pytest.mark.parametrize("port", PORTS)
@for_each("name", STALLED)
def test_unread_answers_are_bounded(one: Running, port: str, name: str) -> None:
    """The server stops reading; what it keeps of 64 MiB stays below its bounds and the system's."""
    unit = STALLED[name]
    with deaf(one, port) as wire:
        wire.settimeout(1.0)
        sent, data = 0, unit * (65_536 // len(unit))
        with suppress(TimeoutError):
            while sent < 64 * 2**20:
                sent += wire.send(data)
        assert sent < 64 * 2**20
        with Wire(one, port) as other:
            assert other.ask(type="ping", nonce=1)["type"] == "pong"
        reset(wire)


def stall_by_messages(one: Running, port: str, unit: bytes) -> socket.socket:
    wire = deaf(one, port)
    data = unit * (2_000_000 // len(unit))
    threading.Thread(target=push, args=(wire, data), daemon=True).start()
    return wire


def stall_by_stream(one: Running, port: str) -> socket.socket:
    """Ask for much, and read none of it."""
    wire = deaf(one, port)
    params = {"max_new_tokens": 90_000, "top_logprobs": 20}
    wire.sendall(words(type="generate", id="a", token_ids=[1], events="tokens", params=params))
    return wire


def end_and_stay(data: bytes) -> Callable[[Running, str], socket.socket]:
    """Send what ends the connection, and keep the socket open."""

    def hold(one: Running, port: str) -> socket.socket:
        wire = opened(one, port)
        wire.sendall(data)
        return wire

    return hold


HOLDERS: dict[str, Callable[[Running, str], socket.socket]] = {
    "unread pongs": lambda one, port: stall_by_messages(one, port, FLOODS["pings with data"]),
    "unread stream": stall_by_stream,
    "unread errors": lambda one, port: stall_by_messages(one, port, FLOODS["letters"]),
    "frame that is refused": end_and_stay(b"\xff\xff"),
    "close without a close": end_and_stay(odd_frame(0x88)),
    "close and then more": end_and_stay(odd_frame(0x88) + b"x" * 5_000),
    "half a message that is refused": end_and_stay(
        odd_frame(0x01, b"a") + odd_frame(0x00) * 17_000
    ),
    "refused handshake": lambda one, port: holding(one, port, handshake("Content-Length: 5")),
    "half a handshake": lambda one, port: holding(one, port, handshake()[:-2]),
    "nothing": lambda one, port: holding(one, port, b""),
}


def holding(one: Running, port: str, data: bytes) -> socket.socket:
    """Send some bytes instead of a handshake."""
    wire = wire_to(one, port)
    wire.sendall(data)
    return wire


@pytest.fixture(params=LOOPS)
def impatient(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A server with few places and short times; nothing else gives a place back."""
    monkeypatch.setattr("asyncgen_apps.websocket.connection_server.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr("asyncgen_apps.websocket.connection.CLOSE_SECONDS", 0.2)
    monkeypatch.setattr("asyncgen_apps.openai_http.connections.LINGER_SECONDS", 0.2)
    times: dict[str, Any] = {"send_seconds": 0.2, "heartbeat_seconds": 600.0, "grace_seconds": 0.1}
    limits = {"max_connections": _PLACES, "max_requests": _PLACES, "head_seconds": 0.3}
    options: dict[str, Any] = {**limits, "send_buffer": 4096, "uvloop": is_on_uvloop(request)}
    with running(endless, streams=times, **options) as found:
        yield found


def is_open(one: Running, port: str) -> bool:
    """Tell whether there is a place."""
    try:
        with Wire(one, port):
            return True
    except (AssertionError, BrokenWire):
        return False


def check_places(one: Running, port: str, name: str) -> None:
    """Take all places, and wait until they are free."""
    with ExitStack() as stack:
        for _ in range(_PLACES):
            stack.enter_context(HOLDERS[name](one, port))
        wait_for(lambda: is_open(one, port))
    one.wait_idle()


@pytest.mark.gate
@for_each("port", PORTS)
@for_each("name", HOLDERS)
def test_place_of_a_silent_client_is_free_in_time(impatient: Running, port: str, name: str) -> None:
    check_places(impatient, port, name)


@pytest.mark.gate
@for_each("port", PORTS)
def test_forced_end_logs_no_traceback(port: str, caplog: pytest.LogCaptureFixture) -> None:
    """Connections in every state are cut off when a server is told twice to leave."""
    with running(endless, drain_seconds=PATIENCE) as one, ExitStack() as stack:
        states = ("frame that is refused", "half a message that is refused", "half a handshake")
        for name in (*states, "nothing", "unread errors"):
            stack.enter_context(HOLDERS[name](one, port))
        idle, busy = (stack.enter_context(Wire(one, port)) for _ in range(2))
        busy.send(type="generate", id="a", token_ids=[1])
        assert busy.get()["type"] == "accepted"
        resumed = stack.enter_context(Wire(one, port))
        resumed.send_frame(Opcode.TEXT, b'{"type":', fin=False)
        for _ in range(2):
            one.call(one.server.leave)
        for wire in (idle, busy):
            with pytest.raises(BrokenWire):
                while True:
                    wire.get()
    assert not [record for record in caplog.records if record.exc_info]


# Who resumes.


@for_each("port", PORTS)
def test_tokens_of_others_and_of_nobody(port: str) -> None:
    grace = {"grace_seconds": 0.2, "heartbeat_seconds": 600.0}
    with running(endless, streams=grace, api_keys=("k1", "k2")) as one:
        with Wire(one, port, key="k1") as owner, Wire(one, port, key="k2") as thief:
            owner.send(type="generate", id="a", token_ids=[1])
            token = owner.get()["resume_token"]
            for wrong in (token, token[:-1], token + "A", token[::-1], "x", "x" * 256, "\0", "🦊"):
                answer = thief.ask(type="resume", id="b", resume_token=wrong, after=0)
                assert (answer["code"], answer["id"]) == ("resume_unknown", "b"), wrong
            reset(owner.socket)
            one.wait_idle()  # its time is over
            with Wire(one, port, key="k1") as late:
                answer = late.ask(type="resume", id="a", resume_token=token, after=0)
                assert (answer["code"], answer["id"]) == ("resume_unknown", "a")


def resume_twice_at_once(one: Running, port: str, seed: int) -> None:
    """Two connections resume one request, and perhaps its first one lives: one has it all."""
    params = {"max_new_tokens": 100, "seed": seed, "do_sample": True}
    with Wire(one, port) as first, Wire(one, port) as second, Wire(one, port) as third:
        first.send(type="generate", id="a", token_ids=[1], params=params)
        token = first.get()["resume_token"]
        if seed % 2:
            reset(first.socket)
        for wire in (second, third):
            wire.send(type="resume", id="b", resume_token=token, after=0)
        ends = [read_resumed(wire) for wire in (second, third)]
    wanted = reference(one, [1], **params).text
    assert sorted(code for code, _ in ends) == ["", "resume_moved"]
    assert [text for code, text in ends if not code] == [wanted]
    assert all(wanted.startswith(text) for _, text in ends)


def read_resumed(wire: Wire) -> tuple[str, str]:
    """Read a resumed request; its error, if one ends it, and its text."""
    assert wire.get()["type"] == "accepted"
    text, seq = "", 0
    while (message := wire.get())["type"] == "delta":
        assert message.get("first_seq", message["seq"]) == seq + 1
        seq = message["seq"]
        text += message["text"]
    return message.get("code", ""), text


@for_each("port", PORTS)
@for_each("seed", [0, 1])
def test_two_resume_one_request_at_once(one: Running, port: str, seed: int) -> None:
    resume_twice_at_once(one, port, seed)


@pytest.mark.gate
@for_each("port", PORTS)
@for_each("seed", range(4, 16))
def test_two_resume_one_request_at_once_often(one: Running, port: str, seed: int) -> None:
    resume_twice_at_once(one, port, seed)


@pytest.mark.gate
@pytest.mark.anyio
@for_each("port", PORTS)
async def test_our_client_resumes_by_itself(one: Running, port: str) -> None:
    params: dict[str, Any] = {"max_new_tokens": 400, "seed": 3, "do_sample": True}
    patience = Patience(first_delay=0.01, longest_delay=0.1)
    with CuttingProxy(getattr(one, port), lambda number: 2_000 + 700 * number) as proxy:
        async with connect(f"{proxy.url}v1/stream", patience=patience) as client:
            told = [await client.generate("a", **params) for _ in range(2)]
    assert proxy.cuts >= 3
    assert told[0].text == told[1].text
    assert len(told[0].token_ids) == 400
