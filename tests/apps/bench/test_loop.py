from __future__ import annotations

import io
from typing import Any, Self

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench import loop, loop_sides
from asyncgen_apps.bench.checkpoints import SHAPES, write_checkpoint
from asyncgen_apps.bench.loop import LoopBench, LoopReport
from asyncgen_apps.bench.loop_sides import PHASES, AsyncgenApplication, TransformersApplication
from tests.apps.bench.test_checkpoints import TINY

BENCH = LoopBench("5m", None, "float32", 8, 2, 2)


def report() -> LoopReport:
    """Two runs a side; ours is a thousandth late, the other a hundredth."""
    ticks = [number / 1e6 for number in range(500)]
    ours = {phase: [*ticks, 0.001] for phase in PHASES}
    theirs = {phase: [10 * tick for tick in run] for phase, run in ours.items()}
    return LoopReport(BENCH, {"asyncgen": [ours, ours], "transformers": [theirs, theirs]})


def test_runs_are_pooled() -> None:
    late = report().lateness_ms("asyncgen", "decode")
    assert late == pytest.approx({"p50": 0.25, "p99": 0.495, "p99.9": 1.0, "max": 1.0}, abs=2e-3)
    assert len(report().ticks("asyncgen", "decode")) == 1002


def test_the_table_has_a_row_for_each_side_of_a_phase() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report().table())
    text = console.export_text()
    assert all(phase in text for phase in PHASES)
    assert text.count("transformers") == text.count("asyncgen") == len(PHASES)


def test_the_chart_is_logarithmic_and_names_the_phases() -> None:
    figure = Figure()
    report().draw(figure)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_yticklabels()] == list(PHASES)


class FakeWorker:
    calls: list[tuple[str, dict[str, Any]]] = []

    def __init__(self, side: str) -> None:
        self.side = side.rpartition(":")[2]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def call(self, operation: str, **arguments: Any) -> dict[str, list[float]]:
        if operation == "warm_up":
            return {}
        self.calls.append((self.side, arguments))
        return {phase: [0.001] for phase in PHASES}


def test_sides_take_turns_at_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeWorker, "calls", [])
    monkeypatch.setattr(loop, "Worker", FakeWorker)
    monkeypatch.setitem(SHAPES, "5m", TINY)
    LoopReport.of(BENCH)
    sides = [side for side, _ in FakeWorker.calls]
    assert sides == ["AsyncgenApplication", "TransformersApplication"] * 2
    work = FakeWorker.calls[0][1]
    assert all(arguments == work for _, arguments in FakeWorker.calls)
    assert len(work["text"]) == 200_000 and len(work["long_prompt"]) == 1000
    assert " " in work["text"]


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
