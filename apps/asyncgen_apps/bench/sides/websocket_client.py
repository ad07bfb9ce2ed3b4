"""Reading side of ``bench websocket``: a process that asks a server for streams.

It does as little work as a client can: it notes when bytes come, and parses them when all have
come.
"""

from __future__ import annotations

import asyncio
import json
import socket
import zlib
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from asyncgen_apps.bench.figures import gaps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen_apps.bench.jobs import Job


DONE, ERROR, HELLO = b'"type":"done', b'"type":"erro', b'"type":"hell'
TAIL = len(DONE) - 1
"""Bytes kept of each chunk, to find a mark that two chunks share; fewer than a whole mark."""
SUBPROTOCOL = "asyncgen.v1"
SMALL_BUFFER = 4096
"""Buffer of the kernel for a client that reads nothing: small, so that the server notices soon."""
AT_A_TIME = 50
"""Connections that are opened together."""
PATIENCE = 300.0
"""Seconds without any byte after which a server counts as stuck."""


class RawConnection(asyncio.Protocol):
    """One connection.

    Attributes:
        chunks: Received bytes, each with the seconds of the clock.
        ends: Requests that have ended.
        failures: Errors that came.
    """

    def __init__(self, port: int) -> None:
        """Keep where it goes; :meth:`open` connects."""
        self.chunks: list[tuple[float, bytes]] = []
        self.ends = self.failures = 0
        self._port = port
        self._uri = f"ws://127.0.0.1:{port}/v1/stream"
        self._protocol = ClientProtocol(parse_uri(self._uri), subprotocols=[SUBPROTOCOL])  # type: ignore[list-item]
        self._transport: asyncio.Transport | None = None
        self._tail = b""
        self._wanted = 0
        self._greeted = asyncio.Event()
        self._ended = asyncio.Event()
        self.is_lost = False

    async def open(self, receive_buffer: int | None = None) -> None:
        """Connect, and wait until the server has said hello.

        Args:
            receive_buffer: Bytes that the kernel keeps for us; ``None`` leaves it to the kernel.

        Raises:
            RuntimeError: It did not.
        """
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(sock, ("127.0.0.1", self._port))
        await loop.create_connection(lambda: self, sock=sock)
        await self._greeted.wait()
        if self.is_lost:
            raise RuntimeError("the server has closed a new connection")
        self.messages()  # the handshake counts as done once it was looked at

    def ask(self, messages: Sequence[dict[str, Any]]) -> None:
        """Send messages in one write; each ``generate`` among them is to end."""
        for message in messages:
            self._protocol.send_text(json.dumps(message).encode())
        self._wanted += sum(message["type"] == "generate" for message in messages)
        self._flush()

    async def finished(self) -> None:
        """Wait until every request has ended.

        Raises:
            RuntimeError: The connection broke before.
        """
        while self.ends + self.failures < self._wanted:
            if self.is_lost:
                raise RuntimeError("the server has closed a connection in mid-stream")
            self._ended.clear()
            await self._ended.wait()

    def stall(self) -> None:
        """Read nothing from now on."""
        assert self._transport is not None
        self._transport.pause_reading()

    def close(self) -> None:
        """Leave for good."""
        if not self.is_lost and self._transport is not None:
            self._protocol.send_close(1000)
            self._flush()
            self._transport.close()

    def messages(self) -> list[tuple[float, dict[str, Any]]]:
        """Take apart what came, each message with the time of its last byte."""
        found = []
        for moment, data in self.chunks:
            self._protocol.receive_data(data)
            found += [
                (moment, json.loads(bytes(event.data)))
                for event in self._protocol.events_received()
                if isinstance(event, Frame) and event.opcode is Opcode.TEXT
            ]
        self.chunks.clear()
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Shake hands."""
        self._transport = cast("asyncio.Transport", transport)
        self._protocol.send_request(self._protocol.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Note the time, and look for ends only."""
        self.chunks.append((perf_counter(), data))
        seen = self._tail + data
        self._tail = seen[-TAIL:]
        if DONE in seen or ERROR in seen:
            self.ends += seen.count(DONE)
            self.failures += seen.count(ERROR)
            self._ended.set()
        if not self._greeted.is_set() and HELLO in seen:
            self._greeted.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Wake who waits."""
        self.is_lost = True
        self._greeted.set()
        self._ended.set()

    def _flush(self) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(self._protocol.data_to_send()))


class RequestSummary:
    """Summary of the messages about one request.

    Attributes:
        deltas: Seconds of the clock of each delta, and the characters that were there.
        check: Checksum of the text.
        tokens: Tokens as ``done`` counts them; ``None`` without one.
        in_order: True if the numbers went up without a gap.
        error: Code of the error that ended it.
    """

    def __init__(self) -> None:
        """Start without messages."""
        self.deltas: list[tuple[float, int]] = []
        self.check = 0
        self.tokens: int | None = None
        self.in_order = True
        self.error: str | None = None
        self._length = 0
        self._seq = 0

    def add(self, moment: float, message: dict[str, Any]) -> None:
        """Add a message that came at a moment."""
        kind = message["type"]
        if kind == "error":
            self.error = message["code"]
        if kind not in ("delta", "done"):
            return
        first = message.get("first_seq", message["seq"])
        self.in_order &= self.tokens is None and first == self._seq + 1
        self._seq = message["seq"]
        if kind == "done":
            self.tokens = message["usage"]["completion_tokens"]
            return
        self._length += len(message["text"])
        self.check = zlib.crc32(message["text"].encode(), self.check)
        self.deltas.append((moment, self._length))


def summarize(messages: list[tuple[float, dict[str, Any]]]) -> dict[str, RequestSummary]:
    """Sort the messages of a connection by their requests.

    Raises:
        RuntimeError: The server sent an error that belongs to no request.
    """
    found: dict[str, RequestSummary] = {}
    for moment, message in messages:
        if "id" in message:
            found.setdefault(message["id"], RequestSummary()).add(moment, message)
        elif message["type"] == "error":
            raise RuntimeError(f"the server complains: {message['message']}")
    return found


class ClientSide:
    """Clients of one server on the loopback."""

    use_uvloop = True

    def __init__(self) -> None:
        """Start without connections."""
        self._runs = 0
        self._held: list[RawConnection] = []

    async def run(
        self,
        job: Job,
        port: int,
        connections: int,
        details: bool = False,
    ) -> dict[str, object]:
        """Ask for all streams at once, shared out evenly, on connections that are open before.

        Args:
            job: The answers, one stream for each prompt.
            port: Port of the server.
            connections: Number of connections.
            details: True returns every stream's deltas and checksum as well.

        Returns:
            ``total`` seconds, ``first`` and ``gaps`` (seconds to the first delta, and between
            deltas), ``lost`` and ``disordered`` streams, and ``streams`` by id with details.
        """
        wires = await _connect(port, connections)
        self._runs += 1
        orders: list[list[dict[str, Any]]] = [[] for _ in wires]
        for index, prompt in enumerate(job.prompts):
            name = f"{self._runs}-{index}"
            orders[index % connections].append(_generate(name, prompt, job.options))
        start = perf_counter()
        for wire, order in zip(wires, orders, strict=True):
            wire.ask(order)
        async with asyncio.timeout(PATIENCE):
            for wire in wires:
                await wire.finished()
        end = max(wire.chunks[-1][0] for wire in wires)
        found = {name: one for wire in wires for name, one in summarize(wire.messages()).items()}
        for wire in wires:
            wire.close()
        times = [[moment for moment, _ in one.deltas] for one in found.values() if one.deltas]
        return {
            "total": end - start,
            "first": [one[0] - start for one in times],
            "gaps": gaps(times),
            "lost": len(job.prompts) - sum(one.tokens == job.new_tokens for one in found.values()),
            "disordered": sum(not one.in_order for one in found.values()),
            "errors": sorted({one.error for one in found.values() if one.error is not None}),
            "streams": {name: [one.check, one.deltas] for name, one in found.items()}
            if details
            else {},
        }

    async def hold(self, port: int, count: int) -> dict[str, object]:
        """Open connections and keep them, without a request."""
        self._held += await _connect(port, count)
        return {}

    async def burden(self, job: Job, port: int, reads: bool) -> dict[str, object]:
        """Open one connection more, ask for streams on it, and do not wait for them.

        Args:
            job: The answers, one stream for each prompt.
            port: Port of the server.
            reads: True reads what comes, False reads nothing.

        Returns:
            ``asked``: seconds of the clock.
        """
        wire = RawConnection(port)
        self._held.append(wire)
        await wire.open(SMALL_BUFFER)
        if not reads:
            wire.stall()
        wire.ask(
            [_generate(f"b{index}", one, job.options) for index, one in enumerate(job.prompts)]
        )
        return {"asked": perf_counter()}

    async def release(self) -> dict[str, object]:
        """Close the connections that are kept."""
        for wire in self._held:
            wire.close()
        self._held.clear()
        return {}

    async def aclose(self) -> None:
        """Close everything."""
        await self.release()


async def _connect(port: int, count: int) -> list[RawConnection]:
    """Open connections, some at a time."""
    wires = [RawConnection(port) for _ in range(count)]
    for start in range(0, count, AT_A_TIME):
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            for wire in wires[start : start + AT_A_TIME]:
                tasks.create_task(wire.open())
    return wires


def _generate(name: str, prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
    """Return the message of one request."""
    return {"type": "generate", "id": name, "token_ids": prompt, "params": params}
