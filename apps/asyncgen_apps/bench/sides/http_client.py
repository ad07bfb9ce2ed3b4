"""Client of ``bench serve``: ask a server for many streams at once and note when text comes.

It does as little work as a client can, the same for every server.
"""

from __future__ import annotations

import json
from time import perf_counter
from typing import TYPE_CHECKING

import anyio

from asyncgen_apps.bench.jobs import Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anyio.abc import ByteStream


BLOCK = 65536


async def ask_all(port: int, bodies: Sequence[Mapping[str, object]], new_tokens: int) -> Run:
    """Ask for all completions at once, each on a connection of its own.

    Args:
        port: Port of the server on the loopback.
        bodies: One for each stream, as ``/v1/completions`` takes them.
        new_tokens: Tokens that every stream must have counted at its end.

    Raises:
        RuntimeError: A reply is no stream, or has another length.
    """
    first = [0.0] * len(bodies)
    requests = [_request(body) for body in bodies]
    start = perf_counter()

    async def read(index: int) -> None:
        async with await anyio.connect_tcp("127.0.0.1", port) as wire:
            await wire.send(requests[index])
            first[index] = await _read(wire, new_tokens) - start

    async with anyio.create_task_group() as tasks:
        for index in range(len(bodies)):
            tasks.start_soon(read, index)
    return Run(perf_counter() - start, tuple(first))


def _request(body: Mapping[str, object]) -> bytes:
    raw = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def _read(wire: ByteStream, new_tokens: int) -> float:
    """Read a reply to its end; return when its first text came.

    A model with random weights may generate incomplete characters only, which servers hold back;
    then the end counts as the first text.
    """
    first: float | None = None
    got = bytearray()
    try:
        while True:
            got += await wire.receive(BLOCK)
            if first is None and b'"text":"' in got.replace(b'"text":""', b"").replace(b": ", b":"):
                first = perf_counter()
    except anyio.EndOfStream:
        pass
    status = bytes(got[:200]).split(b"\r\n", 1)[0]
    if b" 200 " not in status or b"data:" not in got:
        raise RuntimeError(f"no stream came: {bytes(got[-300:]).decode(errors='replace')}")
    counted = got.replace(b" ", b"").rpartition(b'"completion_tokens":')[2]
    if int(counted.partition(b",")[0]) != new_tokens:
        raise RuntimeError(f"a stream has another length: {bytes(counted[:20])!r}")
    return perf_counter() if first is None else first
