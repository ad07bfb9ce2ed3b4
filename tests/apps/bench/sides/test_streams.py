from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.bench.checkpoints import write_checkpoint, write_description
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.sides.streams import AsyncgenStreams
from asyncgen_apps.bench.sides.transformers import TransformersContinuous, TransformersPadded
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
PROMPTS = [list(range(400, 408)), list(range(300, 304)), list(range(200, 206))]


def job(prompts: list[list[int]], new_tokens: int) -> Job:
    return Job(prompts, {"max_new_tokens": new_tokens, "do_sample": False})


Side = AsyncgenStreams | TransformersContinuous | TransformersPadded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, "float32")
    return str(folder)


@pytest.fixture
def anyio_backend() -> str:
    """Workers run on asyncio."""
    return "asyncio"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", [AsyncgenStreams, TransformersContinuous, TransformersPadded])
async def test_all_prompts_are_answered_and_timed(kind: type[Side], folder: str) -> None:
    if kind is not AsyncgenStreams:
        pytest.importorskip("transformers")
    side = kind()
    try:
        await side.load(folder, "float32", streams=3, length=14)
        got = await side.run(job(PROMPTS, 6))
        await side.run(job(PROMPTS[:1], 2))
    finally:
        await side.aclose()
    assert got.total > 0
    if kind is AsyncgenStreams:
        assert len(got.first) == 3 and len(got.gaps) == 3 * 5
        assert all(0 < first <= got.total for first in got.first)
        assert all(gap >= 0 for gap in got.gaps)


async def test_a_model_whose_weights_are_drawn(tmp_path: Path) -> None:
    write_description(tmp_path, TINY, "bfloat16")
    side = AsyncgenStreams()
    try:
        await side.load(str(tmp_path), "bfloat16", streams=3, length=14, made=True)
        assert len((await side.run(job(PROMPTS, 3))).gaps) == 3 * 2
    finally:
        await side.aclose()


@pytest.mark.filterwarnings("default")
async def test_failure_in_the_loading_thread_is_raised() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(OSError):
        await TransformersContinuous().load("/nowhere", "float32", streams=1, length=8)
