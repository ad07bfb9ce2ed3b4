from __future__ import annotations

from pathlib import Path

import pytest

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.sides.llm import AsyncgenLoop, AsyncgenReader
from asyncgen_apps.bench.sides.transformers import TransformersReader
from tests.apps.bench.test_checkpoints import TINY

HEAVY = ("import torch", "from torch", "import transformers", "from transformers")
pytestmark = pytest.mark.anyio
PROMPT = list(range(400, 408))


def job(new_tokens: int) -> Job:
    return Job([PROMPT], {"max_new_tokens": new_tokens, "do_sample": False})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, "float32")
    return str(folder)


@pytest.fixture
def anyio_backend() -> str:
    """Workers run on asyncio."""
    return "asyncio"


@pytest.mark.parametrize("side", [AsyncgenReader, AsyncgenLoop, TransformersReader])
async def test_an_answer_is_timed(
    side: type[AsyncgenReader | AsyncgenLoop | TransformersReader], folder: str
) -> None:
    if side is TransformersReader:
        pytest.importorskip("transformers")
    one = side()
    try:
        await one.load(folder, "float32")
        got = await one.run(job(6))
        again = await one.run(job(6))
    finally:
        await one.aclose()
    assert 0 < got.first[0] <= got.total
    assert got.text == again.text


async def test_both_readers_get_the_same_text(folder: str) -> None:
    pytest.importorskip("transformers")
    texts = []
    for side in (AsyncgenReader(), TransformersReader()):
        await side.load(folder, "float32")
        texts.append((await side.run(job(12))).text)
        await side.aclose()
    assert texts[0] == texts[1] != ""


def test_workers_are_light_until_they_load() -> None:
    for file in (Path(__file__).parents[4] / "apps/asyncgen_apps/bench/sides").glob("*.py"):
        imports = [line for line in file.read_text().splitlines() if line.startswith(HEAVY)]
        assert not imports, file
