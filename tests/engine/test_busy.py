"""A stream keeps most of its speed while another process spins on one of the cores."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen import AsyncLLM, native
from asyncgen_apps.bench.checkpoints import SHAPES, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif((os.cpu_count() or 1) != 2, reason="is about one of two cores"),
]

RUNS = 10
OURS, TORCHS = 0.45, 0.25
"""The least part of the quiet speed, with our kernels and with torch's."""


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 135M parameters."""
    made: Path = tmp_path_factory.mktemp(request.param)
    write_checkpoint(made, SHAPES["135m"], request.param)
    return made


@contextmanager
def a_neighbour() -> Iterator[None]:
    """Another process that spins."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            time.sleep(0.3)
            yield
        finally:
            process.kill()


async def speed(llm: AsyncLLM, streams: int, tokens: int) -> float:
    """Tokens a second of some streams together."""

    async def read() -> None:
        ids = torch.randint(5, 3000, (16,)).tolist()
        stream = llm.stream(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        async for _ in stream.events():
            pass

    began = time.perf_counter()
    await asyncio.gather(*(read() for _ in range(streams)))
    return streams * tokens / (time.perf_counter() - began)


@pytest.mark.parametrize(("streams", "tokens"), [(1, 48), (16, 16)])
def test_stream_keeps_half_its_speed_beside_a_busy_process(
    folder: Path, streams: int, tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure() -> tuple[list[float], list[float]]:
        quiet, busy = [], []
        async with AsyncLLM(folder, dtype=folder.name[:-1], kv_cache_memory=1 << 30) as llm:
            await speed(llm, streams, tokens)
            for _ in range(RUNS):
                quiet.append(await speed(llm, streams, tokens))
                with a_neighbour():
                    busy.append(await speed(llm, streams, tokens))
        return quiet, busy

    quiet, busy = asyncio.run(measure())
    usual = median(quiet)
    with capsys.disabled():
        ratios = " ".join(f"{each / usual:.2f}" for each in sorted(busy))
        print(f"\n{folder.name[:-1]}, {streams} streams: {usual:.1f} tokens/s, {ratios}")  # noqa: T201
    needed = TORCHS if native.kernels is None else OURS
    assert min(busy) >= needed * usual
