from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.sides.scale import ForwardMeter, ScaleSide
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
PROMPTS = [[400 + number, 401, 402] for number in range(6)]


@pytest.fixture
def anyio_backend() -> str:
    """Workers run on asyncio."""
    return "asyncio"


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class FakeCore:
    """Computes for a while, one way in calling the other."""

    def decode(self, seconds: float) -> str:
        self.hidden(seconds)
        return "logits"

    def hidden(self, seconds: float) -> None:
        spin(seconds)


def test_only_the_time_outside_of_the_model_counts() -> None:
    core: Any = FakeCore()
    meter = ForwardMeter(core)
    with pytest.raises(RuntimeError, match="not been called"):
        meter.read()
    found: list[tuple[float, float]] = []
    go_on, read = threading.Event(), threading.Event()

    def decode_thread() -> None:
        core.decode(0.0)
        before = meter.read()
        spin(0.02)
        assert core.decode(0.2) == "logits"
        spin(0.02)
        after = meter.read()
        found.append((after[0] - before[0], after[1] - before[1]))
        read.set()
        go_on.wait(60)

    thread = threading.Thread(target=decode_thread)
    thread.start()
    assert read.wait(60)
    meter.read()  # of another thread
    go_on.set()
    thread.join()
    [(outside, inside)] = found
    assert 0.04 <= outside < 0.2
    assert inside >= 0.2


async def test_many_streams_are_measured(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    side = ScaleSide()
    job = Job(PROMPTS, {"max_new_tokens": 5, "do_sample": False})
    try:
        await side.load(str(tmp_path), "float32", streams=6)
        late: dict[str, Any] = await side.run(job, ticks=True)
        cost: dict[str, Any] = await side.run(job, ticks=False)
        waiting = await side.waiting(PROMPTS, has_end=False)
    finally:
        await side.aclose()
    assert late["lost"] == cost["lost"] == 0
    assert late["lateness"] and min(late["lateness"]) >= 0
    assert 0 < cost["loop"] and 0 < cost["decode"]
    assert 0 < cost["outside"] <= cost["total"]
    assert waiting["bytes"] is None or waiting["bytes"] >= 0
