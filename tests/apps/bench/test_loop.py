from __future__ import annotations

import io

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.checkpoints import SHAPES, write_checkpoint
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.loop import LoopReport
from asyncgen_apps.bench.settings import LoopBench
from asyncgen_apps.bench.sides import loop as sides_loop
from asyncgen_apps.bench.sides.loop import PHASES, AsyncgenApplication, TransformersApplication
from tests.apps.bench.doubles import fake_workers
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


def test_sides_take_turns_at_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_workers(monkeypatch, lambda *_: {phase: [0.001] for phase in PHASES})
    monkeypatch.setitem(SHAPES, "5m", TINY)
    LoopReport.of(BENCH)
    runs = [call for call in calls if call[1] == "phases"]
    sides = [side for side, _, _ in runs]
    assert sides == ["AsyncgenApplication", "TransformersApplication"] * 2
    work = runs[0][2]
    assert all(arguments == work for _, _, arguments in runs)
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
    monkeypatch.setattr(sides_loop, "IDLE_SECONDS", 0.05)
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, "float32")
    application = side()
    await application.warm_up(str(folder))
    for _ in range(2):
        late = await application.phases(
            Job([list(range(300, 308))], {"max_new_tokens": 4, "do_sample": False}),
            str(folder),
            "float32",
            text="the quick fox " * 1500,
            long_prompt=list(range(300, 500)),
        )
        assert tuple(late) == PHASES
        assert all(ticks and min(ticks) >= 0 for ticks in late.values())
    await application.aclose()
