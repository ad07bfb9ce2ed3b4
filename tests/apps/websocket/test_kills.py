"""Connections that are killed in every way, on both ports: no text is lost, none comes twice."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from websockets.frames import Opcode

from asyncgen import AsyncLLM
from tests.apps.openai_http.running import Running, reference, running
from tests.apps.websocket.wires import (
    LOOPS,
    PORTS,
    BrokenWire,
    Wire,
    frames,
    handshake,
    is_on_uvloop,
    read_all,
    reset,
    wire_to,
)
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STREAMS = 3
_STEP_SECONDS = 0.002
_HEARTBEAT = 0.3
_MOST_READ = 12
_CLOSE_CODES = (1001, 1006, 1011)


def paced() -> AsyncLLM:
    """An engine that is slow enough to be interrupted while it writes."""
    model = TableModel(context_length=100_000, hook=lambda *_: time.sleep(_STEP_SECONDS))
    return AsyncLLM(model, tokenizer=byte_tokenizer())


@pytest.fixture(scope="module", params=LOOPS)
def one(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(
        paced, streams={"heartbeat_seconds": _HEARTBEAT}, uvloop=is_on_uvloop(request)
    ) as found:
        yield found


@dataclass
class Reading:
    """A request, and what its client has read of it."""

    id: str
    params: dict[str, Any]
    token: str = ""
    text: str = ""
    seq: int = 0
    has_ended: bool = False

    def take(self, message: Any) -> None:
        """Take a message of the request."""
        match message["type"]:
            case "accepted":
                assert self.token in ("", message["resume_token"])
                self.token = message["resume_token"]
            case "delta":
                assert message.get("first_seq", message["seq"]) == self.seq + 1, (self, message)
                self.seq = message["seq"]
                self.text += message["text"]
            case "done":
                assert message["seq"] == self.seq + 1, (self, message)
                self.has_ended = True
            case _:
                raise AssertionError(message)


def _have_ended(by_id: dict[str, Reading]) -> bool:
    """Tell whether all was read of all requests."""
    return all(reading.has_ended for reading in by_id.values())


@dataclass
class Client:
    """A client that is killed again and again, and resumes all that it reads."""

    one: Running
    port: str
    luck: random.Random
    kills: Counter[str] = field(default_factory=Counter)

    def read_all(self, readings: list[Reading], kinds: list[str]) -> None:
        """Read requests to their ends; kill the connection once for each kind."""
        by_id = {reading.id: reading for reading in readings}
        with Wire(self.one, self.port) as wire:
            for reading in readings:
                wire.send(type="generate", id=reading.id, token_ids=[1], params=reading.params)
            while not all(reading.token for reading in readings):
                message = wire.get()
                by_id[message["id"]].take(message)
            self._read(wire, by_id, kinds)
        while not all(reading.has_ended for reading in readings):
            # What ends a wire before its time is a kill as well.
            with suppress(BrokenWire), Wire(self.one, self.port) as wire:
                self._resume(wire, by_id)
                self._read(wire, by_id, kinds)

    def _resume(self, wire: Wire, by_id: dict[str, Reading]) -> None:
        for each in by_id.values():
            if not each.has_ended:
                wire.send(type="resume", id=each.id, resume_token=each.token, after=each.seq)

    def _read(self, wire: Wire, by_id: dict[str, Reading], kinds: list[str]) -> None:
        """Read some messages, or all if the client need not be killed any more; then kill it."""
        left = self.luck.randrange(_MOST_READ) if kinds else -1
        while left and not _have_ended(by_id):
            message = wire.get()
            by_id[message["id"]].take(message)
            left -= 1
        if left or _have_ended(by_id):
            return
        kind = kinds.pop()
        self.kills[kind] += 1
        _KINDS[kind](self, wire, by_id)

    # How it is killed.

    def abort(self, wire: Wire, _: Any) -> None:
        """Send a reset."""
        reset(wire.socket)

    def fin(self, wire: Wire, _: Any) -> None:
        """Close the socket without a close frame."""
        wire.socket.shutdown(socket.SHUT_WR)
        with suppress(BrokenWire):
            while True:
                wire.get()

    def close(self, wire: Wire, _: Any) -> None:
        """Close like a page that is left, or with a code that is an error."""
        code = self.luck.choice(_CLOSE_CODES)
        wire.send_frame(Opcode.CLOSE, code.to_bytes(2, "big"))

    def process(self, wire: Wire, _: Any) -> None:
        """Kill the process that holds the connection."""
        holder = subprocess.Popen(["sleep", "600"], pass_fds=[wire.socket.fileno()])
        wire.socket.close()
        holder.kill()
        holder.wait()

    def frame(self, wire: Wire, _: Any) -> None:
        """Break in the middle of a frame, or of a message."""
        whole = frames(Opcode.TEXT, 1, b'{"type":"ping","nonce":1}', fin=self.luck.random() < 0.5)
        wire.socket.sendall(whole[: self.luck.randrange(1, len(whole))])
        self.luck.choice((reset, socket.socket.close))(wire.socket)

    def handshake(self, wire: Wire, _: Any) -> None:
        """Break, and break the next connection during its handshake."""
        reset(wire.socket)
        head = handshake()
        second = wire_to(self.one, self.port)
        second.sendall(head[: self.luck.randrange(len(head) + 1)])
        self.luck.choice((reset, socket.socket.close))(second)

    def resume(self, wire: Wire, by_id: dict[str, Reading]) -> None:
        """Break, and break the next connection as soon as it has sent what it resumes."""
        reset(wire.socket)
        with Wire(self.one, self.port) as second:
            self._resume(second, by_id)
            reset(second.socket)

    def alive(self, wire: Wire, by_id: dict[str, Reading]) -> None:
        """Resume from another connection while this one lives, and break that one."""
        with Wire(self.one, self.port) as second:
            self._resume(second, by_id)
            self.luck.choice((reset, socket.socket.close))(second.socket)
        reset(wire.socket)

    def replay(self, wire: Wire, by_id: dict[str, Reading]) -> None:
        """Break, and break the next connection while it reads what it has missed."""
        reset(wire.socket)
        with Wire(self.one, self.port) as second:
            self._resume(second, by_id)
            for _ in range(self.luck.randrange(1, 4)):
                if _have_ended(by_id):
                    break  # nothing more comes
                message = second.get()
                by_id[message["id"]].take(message)
            reset(second.socket)

    def silence(self, wire: Wire, _: Any) -> None:
        """Answer no ping, until the server gives the connection up."""
        read_all(wire.socket)
        wire.socket.close()


_KINDS: dict[str, Callable[[Client, Wire, dict[str, Reading]], None]] = {
    kind.__name__: kind
    for kind in (
        Client.abort,
        Client.fin,
        Client.close,
        Client.process,
        Client.frame,
        Client.handshake,
        Client.resume,
        Client.alive,
        Client.replay,
        Client.silence,
    )
}


def kill_and_compare(
    one: Running, port: str, *, kills: int, tokens: int, seed: int
) -> Counter[str]:
    """Kill a client so often, and compare what it read with what it would have read in peace.

    Returns:
        Kills by their kind.
    """
    luck = random.Random(seed)
    client = Client(one, port, luck)
    deck = [kind for _ in range(-(-kills // len(_KINDS))) for kind in _KINDS]
    luck.shuffle(deck)
    rounds = 0
    while deck:
        rounds += 1
        params = [
            {"seed": 10 * rounds + number, "do_sample": True, "max_new_tokens": tokens}
            for number in range(_STREAMS)
        ]
        readings = [Reading(str(number), each) for number, each in enumerate(params)]
        client.read_all(readings, deck)
        for reading in readings:
            assert reading.text == reference(one, [1], **reading.params).text
    one.wait_idle()
    return client.kills


@pytest.mark.gate
@pytest.mark.parametrize("port", PORTS)
def test_each_way_to_be_killed(one: Running, port: str) -> None:
    made = kill_and_compare(one, port, kills=len(_KINDS), tokens=200, seed=1)
    assert set(made) == set(_KINDS)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("port", PORTS)
def test_killed_200_times(one: Running, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = kill_and_compare(one, port, kills=200, tokens=1000, seed=7)
    with capsys.disabled():
        print(f"\n{port}: {made.total()} kills, every text as undisturbed: {dict(made)}")  # noqa: T201
