"""Clients on bare sockets, which can do what no library lets them do."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Self

import pytest
from websockets.frames import Frame, Opcode

from tests.apps.openai_http.running import PATIENCE

if TYPE_CHECKING:
    from types import TracebackType

    from tests.apps.openai_http.running import Running

PORTS = ("port", "ws_port")
"""The port of the HTTP server, and the one of streams alone."""

LOOPS = [
    pytest.param(False, id="asyncio"),
    pytest.param(True, id="uvloop", marks=pytest.mark.gate),
]
"""Parameters of a server's fixture: the command runs on uvloop where it is installed."""

KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
MASK = b"\0\0\0\0"


def is_on_uvloop(request: pytest.FixtureRequest) -> bool:
    """Return the parameter of a server's fixture; skip where uvloop is not installed."""
    if request.param:
        pytest.importorskip("uvloop")
    return bool(request.param)


def wire_to(one: Running, port: str) -> socket.socket:
    """Connect to one of the ports."""
    return socket.create_connection(("127.0.0.1", getattr(one, port)), PATIENCE)


def handshake(*lines: str, path: str = "/v1/stream") -> bytes:
    """Write the head of a handshake."""
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode()


def opened(one: Running, port: str) -> socket.socket:
    """Shake hands on a bare socket."""
    wire = wire_to(one, port)
    wire.sendall(handshake())
    assert b" 101 " in wire.recv(4096)
    return wire


def frames(opcode: Opcode, count: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """Write frames of a client, all the same."""
    return Frame(opcode, data, fin=fin).serialize(mask=True) * count


def odd_frame(first: int, data: bytes = b"", *, masked: bool = True, length: int = -1) -> bytes:
    """Write a frame of which any bit may be wrong.

    Args:
        first: First byte: flags and opcode.
        data: Payload, which is sent as it is: the mask is 0.
        masked: Whether the frame says that it is masked.
        length: Bytes of the field of length: 0, 2 or 8; by default as few as the data needs.
    """
    count = len(data)
    if length < 0:
        length = 0 if count < 126 else 2 if count < 2**16 else 8
    short = {0: count, 2: 126, 8: 127}[length]
    field = {0: b"", 2: struct.pack("!H", count & 0xFFFF), 8: struct.pack("!Q", count)}[length]
    mask = MASK if masked else b""
    return bytes([first, short | (0x80 if masked else 0)]) + field + mask + data


def reset(wire: socket.socket) -> None:
    """Break a connection: its peer gets a reset."""
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def read_all(wire: socket.socket) -> bytes:
    """Read until the server closes or breaks the connection."""
    received = b""
    try:
        while piece := wire.recv(65536):
            received += piece
    except ConnectionError:
        pass
    return received


class BrokenWire(Exception):
    """Raised when the connection has ended."""


class Wire:
    """A client that reads one message at a time, and answers pings while it reads."""

    def __init__(self, one: Running, port: str, key: str | None = None) -> None:
        """Connect, and read the hello."""
        self._lines = [] if key is None else [f"Authorization: Bearer {key}"]
        self.socket = wire_to(one, port)
        self._received = b""
        try:
            self._greet()
        except BaseException:
            self.socket.close()
            raise

    def _greet(self) -> None:
        self.socket.sendall(handshake(*self._lines))
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        assert b" 101 " in head, head
        assert self.get()["type"] == "hello"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.send_frame(Opcode.TEXT, json.dumps(message).encode())

    def send_frame(self, opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> None:
        """Send a frame."""
        try:
            self.socket.sendall(frames(opcode, 1, data, fin=fin))
        except ConnectionError as error:
            raise BrokenWire from error

    def get(self) -> Any:
        """Read the next message.

        Raises:
            BrokenWire: The connection has ended.
        """
        while True:
            opcode, data = self._frame()
            if opcode == Opcode.PING:
                self.send_frame(Opcode.PONG, data)
            elif opcode == Opcode.CLOSE:
                raise BrokenWire(struct.unpack("!H", data[:2])[0] if data else 1005)
            elif opcode == Opcode.TEXT:
                return json.loads(data)

    def ask(self, **message: Any) -> Any:
        """Send a message, and read the next one."""
        self.send(**message)
        return self.get()

    def _frame(self) -> tuple[int, bytes]:
        head = self._take(2)
        size = head[1]
        assert size < 128, "a server does not mask"
        if size >= 126:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        return head[0] & 15, self._take(size)

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def _receive(self) -> None:
        try:
            piece = self.socket.recv(65536)
        except ConnectionError as error:
            raise BrokenWire from error
        if not piece:
            raise BrokenWire
        self._received += piece
