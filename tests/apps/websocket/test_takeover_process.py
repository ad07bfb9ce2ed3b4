"""``asyncgen serve-ws`` is killed, and started again with its secret: streams go on."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.websocket import connect
from tests.apps.cli.test_serve_ws import ROOT
from tests.apps.ray_serve.cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(180)]

PROMPT = "Once upon a time"
GIVEN: dict[str, Any] = {
    "max_new_tokens": 700,
    "min_new_tokens": 690,
    "seed": 4,
    "temperature": 1.1,
}


@contextmanager
def server(port: int) -> Iterator[subprocess.Popen[str]]:
    """Returns when it serves; kills it without a word behind the block."""
    command = [sys.executable, "-m", "asyncgen_apps.cli", "serve-ws", "--threads", "1"]
    environ = {**os.environ, "ASYNCGEN_RESUME_SECRET": "known to both of these"}
    with subprocess.Popen(
        [*command, "--port", str(port)], cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any(line.startswith("serving demo at ") for line in process.stderr)
            yield process
        finally:
            process.kill()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_stream_outlives_a_server_that_is_killed_and_started_again() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        whole = await llm.generate(PROMPT, **GIVEN)
    port = free_port()
    with server(port) as first, anyio.fail_after(120):
        async with connect(f"ws://127.0.0.1:{port}/v1/stream") as client:
            stream = client.stream(PROMPT, **GIVEN)
            events = stream.events()
            read = [await anext(events) for _ in range(3)]
            first.kill()
            first.wait()
            assert sum(len(event.token_ids) for event in read) < 690
            again = server(port)
            await anyio.to_thread.run_sync(again.__enter__)
            try:
                read += [event async for event in events]
            finally:
                again.__exit__(None, None, None)
            assert stream.is_exact
    assert stream.result.samples == whole.samples
    assert "".join(event.text for event in read) == whole.text
