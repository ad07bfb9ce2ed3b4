from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.bench.checkpoints import SHAPES
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.models import drafted_checkpoint
from asyncgen_apps.bench.sides.strategies import AsyncgenCaller, TransformersCaller
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen_apps.bench.models import DraftedCheckpoint

pytestmark = pytest.mark.anyio
PROMPT = [300, 301, 302, 303]


@pytest.fixture
def anyio_backend() -> str:
    """Nothing here waits; one backend is enough."""
    return "asyncio"


@pytest.fixture(scope="module")
def found() -> Iterator[DraftedCheckpoint]:
    kept = SHAPES["5m"]
    SHAPES["5m"] = TINY
    try:
        with drafted_checkpoint("5m", None, "float32") as made:
            yield made
    finally:
        SHAPES["5m"] = kept


async def loaded(side: AsyncgenCaller | TransformersCaller, found: DraftedCheckpoint) -> Any:
    folders = (str(found.target.folder), "float32", str(found.draft), str(found.foreign))
    await side.load(*folders)
    return side


PLAIN = Job([PROMPT], {"max_new_tokens": 6})
CALLS: list[dict[str, Any]] = [
    {"job": PLAIN},
    {"job": Job([PROMPT], {"max_new_tokens": 6, "do_sample": True})},
    {"job": PLAIN, "draft": "draft"},
    {"job": PLAIN, "draft": "foreign", "wants_tokenizer": True},
]


@pytest.mark.filterwarnings("ignore")
async def test_both_sides_give_the_same_tokens(found: DraftedCheckpoint) -> None:
    pytest.importorskip("transformers")
    ours, theirs = await loaded(AsyncgenCaller(), found), await loaded(TransformersCaller(), found)
    for call in CALLS:
        answers = [await side.run(seed=3, **call) for side in (ours, theirs)]
        assert answers[0].token_ids == answers[1].token_ids, call
        assert len(answers[0].token_ids) == 6
        assert all(answer.total > 0 for answer in answers)
    await ours.aclose()
    await theirs.aclose()
