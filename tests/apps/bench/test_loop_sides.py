from __future__ import annotations

import pytest

from asyncgen_apps.bench import loop_sides
from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.loop_sides import PHASES, AsyncgenApplication, TransformersApplication
from tests.apps.bench.test_checkpoints import TINY

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Workers run on asyncio."""
    return "asyncio"


@pytest.mark.parametrize("side", [AsyncgenApplication, TransformersApplication])
async def test_every_phase_has_its_ticks(
    side: type[AsyncgenApplication | TransformersApplication],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(loop_sides, "IDLE_SECONDS", 0.05)
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, "float32")
    application = side()
    await application.warm_up(str(folder))
    for _ in range(2):
        late = await application.phases(
            str(folder),
            "float32",
            text="the quick fox " * 1500,
            long_prompt=list(range(300, 500)),
            prompt=list(range(300, 308)),
            new_tokens=4,
        )
        assert tuple(late) == PHASES
        assert all(ticks and min(ticks) >= 0 for ticks in late.values())
    await application.aclose()
