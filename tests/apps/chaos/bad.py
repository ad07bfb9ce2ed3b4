"""Clients that leave, cut, read nothing, stand still, or say what cannot be.

Each is a function of a server and dice; none of them hears an answer to its end.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import connect as dial_websocket

from tests.apps.chaos.place import ASKS, ENDLESS, PATIENCE, head, said, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.apps.chaos.place import Place


def read_some(wire: socket.socket, dice: Random) -> None:
    """Read a few pieces."""
    for _ in range(dice.randrange(4)):
        if not wire.recv(dice.choice((1, 200, 4000))):
            break


def reset(wire: socket.socket) -> None:
    """Cut: the other side hears of an error, and of no end."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def leave(place: Place, dice: Random) -> None:
    """Close in the middle of an answer, or of the prompt."""
    with place.begin(ENDLESS, n=dice.choice((1, 1, 3))) as wire:
        read_some(wire, dice)


def cut(place: Place, dice: Random) -> None:
    """Reset in the middle of an answer, streamed or not."""
    wire = place.begin(ENDLESS, stream=dice.random() < 0.7)
    if dice.random() < 0.7:
        wire.settimeout(0.05)
        with suppress(TimeoutError):
            read_some(wire, dice)
    reset(wire)


def hold(place: Place, wire: socket.socket, most: int = 24) -> None:
    """Keep a connection that nothing more is done with; of many, the oldest goes."""
    place.held.append(wire)
    if len(place.held) > most:
        reset(place.held.pop(0))


def stall(place: Place, dice: Random) -> None:
    """Read a little of an answer, and then no more."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    wire.settimeout(PATIENCE)
    wire.connect(("127.0.0.1", place.port))
    body = json.dumps(ENDLESS.body(stream=True, n=2, logprobs=20)).encode()
    wire.sendall(head(ENDLESS.path, len(body)) + body)
    read_some(wire, dice)
    hold(place, wire)


def say_nothing(place: Place, dice: Random) -> None:
    """Connect, and no more; or send half of a head or of a body, and no more."""
    wire = place.dial()
    body = json.dumps(ENDLESS.body()).encode()
    whole = head(ENDLESS.path, len(body)) + body
    wire.sendall(whole[: dice.choice((0, 10, 60, len(whole) - 5))])
    hold(place, wire)


def dawdle(place: Place, dice: Random) -> None:
    """Send a request in small pieces with pauses; it is answered, or the client gives up."""
    body = json.dumps(ASKS[0].body()).encode()
    whole = head(ASKS[0].path, len(body)) + body
    with place.dial() as wire:
        for at in range(0, len(whole), 16):
            wire.sendall(whole[at : at + 16])
            time.sleep(0.01)
            if dice.random() < 0.02:
                return
        assert wire.recv(12) == b"HTTP/1.1 200"


HOSTILE: tuple[tuple[str, Any], ...] = (
    ("/v1/completions", {"model": "demo", "prompt": "x", "temperature": -1}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "n": 10**9}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "max_new_tokens": 10**30}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "seed": 2**80}),
    ("/v1/completions", {"model": "demo", "prompt": ["x"] * 5000}),
    ("/v1/completions", {"model": "demo", "prompt": [10**9]}),
    ("/v1/completions", {"model": "demo", "prompt": [[]]}),
    ("/v1/completions", {"model": "demo", "prompt": "word " * 4000}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "logit_bias": {"-7": 1}}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "stop": [""]}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "priority": 2**31}),
    ("/v1/completions", {"model": "demo", "prompt": "x", "__class__": {}}),
    ("/v1/completions", {"model": "../../etc/passwd", "prompt": "x"}),
    ("/v1/completions", b'{"model": "demo", "prompt": "\xff'),
    ("/v1/completions", b"[" * 100_000),
    ("/v1/completions", b'{"model": "demo", "prompt": "x", "temperature": NaN}'),
    ("/v1/chat/completions", {"model": "demo", "messages": []}),
    ("/v1/chat/completions", {"model": "demo", "messages": [{"role": "{{x}}", "content": "x"}]}),
    ("/v1/chat/completions", {"model": "demo", "messages": said("x"), "tools": [{}]}),
    ("/v1/none", {}),
)


def lie(place: Place, dice: Random) -> None:
    """Send what cannot be; it is refused with a reason."""
    path, body = dice.choice(HOSTILE)
    status, got = place.post(path, body)
    assert 400 <= status < 500, (status, body)
    assert got["error"]["message"]


def babble(place: Place, dice: Random) -> None:
    """Send what is no HTTP, or a head that is too long."""
    junk = (dice.randbytes(2000), b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 40_000, b"\x16\x03\x01\x00")
    with place.dial() as wire, suppress(ConnectionError):
        wire.sendall(dice.choice(junk) + b"\r\n\r\n")
        wire.settimeout(1.0)
        with suppress(TimeoutError):
            wire.recv(100)


def bother(place: Place, dice: Random) -> None:
    """Say things to a WebSocket that are out of place, and leave without a farewell."""
    request = {"type": "generate", "prompt": "Once", "params": {"min_new_tokens": 200}}
    frames: tuple[str | bytes, ...] = (
        "{",
        b"\x00\xff",
        "[]" * 10_000,
        json.dumps({"type": "cancel", "id": "nobody"}),
        json.dumps({"type": "resume", "id": "r", "resume_token": "x" * 64, "after": 2**60}),
        json.dumps({"type": "generate", "id": "n", "prompt": "x", "params": {"n": 10**12}}),
        json.dumps({"type": "ping", "nonce": "a" * 1000}),
        json.dumps({**request, "id": "a"}),
        json.dumps({"type": "cancel", "id": "a"}),
    )
    port = dice.choice((place.port, place.ws_port))
    url = f"ws://127.0.0.1:{port}/v1/stream"
    with suppress(WebSocketException), dial_websocket(url, compression=None) as wire:
        for _ in range(6):
            wire.send(dice.choice(frames))
        with suppress(TimeoutError):
            while dice.random() < 0.8:
                wire.recv(0.2)
        if dice.random() < 0.5:
            wire.socket.shutdown(socket.SHUT_RDWR)


def leave_the_page(place: Place, dice: Random) -> None:
    """Ask the chat page, and leave, or cut, before the end or without listening at all."""
    # With a seed: another story each time would fill pages for keys and values that are free yet.
    data = ["Tell me a story about a hen.", [], {"min_new_tokens": 400, "seed": 1}]
    event = place.post("/gradio_api/call/chat", {"data": data})[1]["event_id"]
    if dice.random() < 0.8:
        wire = place.dial()
        wire.sendall(
            f"GET /gradio_api/call/chat/{event} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        read_some(wire, dice)
        reset(wire) if dice.random() < 0.5 else wire.close()


FREEZE = """
import os, signal, socket, sys
wire = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
wire.sendall(sys.stdin.buffer.read())
wire.recv(1)
os.kill(os.getpid(), signal.SIGSTOP)
while wire.recv(65536):
    pass
"""
"""A client that stands still in the middle of an answer."""


def freeze(place: Place, dice: Random) -> None:
    """Be stopped in the middle, by a signal; later go on, or end."""
    body = json.dumps(ENDLESS.body(stream=True)).encode()
    command = [sys.executable, "-S", "-E", "-c", FREEZE, str(place.port)]
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    place.frozen.append(client)
    assert client.stdin is not None
    client.stdin.write(head(ENDLESS.path, len(body)) + body)
    client.stdin.close()
    if len(place.frozen) > 4:
        oldest = place.frozen.pop(0)
        oldest.send_signal(dice.choice((signal.SIGKILL, signal.SIGCONT)))
        wait_for(lambda: oldest.poll() is not None)


BAD: tuple[Callable[[Place, Random], None], ...] = (
    leave,
    cut,
    stall,
    say_nothing,
    dawdle,
    lie,
    babble,
    bother,
    freeze,
)
