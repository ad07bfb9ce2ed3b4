"""One engine, read in its own process and over sockets: both get all, and what is put is noted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.sides.websocket import ServerSide
from asyncgen_apps.bench.sides.websocket_client import ClientSide
from asyncgen_apps.bench.websocket import delays
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path

JOB = Job([[300, 301], [302, 303, 304], [305]], {"max_new_tokens": 6, "do_sample": False})


async def serve_both(folder: str) -> None:
    server, client = ServerSide(), ClientSide()
    try:
        await server.load(folder, "float32", 4)
        port: Any = (await server.serve())["port"]
        await server.watch()
        assert (await server.run(JOB)).total
        await server.note(True)
        got: dict[str, Any] = await client.run(JOB, port, 2, details=True)
        put: dict[str, Any] = await server.note(False)
        assert (got["lost"], got["disordered"], got["errors"]) == (0, 0, [])
        assert len(put) == 3
        assert all(one > 0 for one in delays(put, got["streams"]))
        await client.hold(port, 2)
        assert (await client.burden(JOB, port, reads=False))["asked"]
        await client.release()
        assert (await server.watched())["dropped"] == 0
        assert (await server.memory())["bytes"]
    finally:
        await client.aclose()
        await server.aclose()


def test_both_ways(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    anyio.run(serve_both, str(tmp_path))
