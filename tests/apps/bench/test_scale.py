from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.scale import Level, ScaleReport
from asyncgen_apps.bench.settings import ScaleBench
from tests.apps.bench.doubles import fake_workers
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path

BENCH = ScaleBench("5m", None, "float32", (100, 1000), 50, 1, 2)


def level(streams: int = 100) -> Level:
    one = Level(streams, 50)
    one.add({"total": 2.0, "lost": 0, "lateness": [0.001] * 98 + [0.02, 0.07]})
    one.add({"total": 1.0, "lost": 1, "loop": 0.1, "decode": 0.05, "outside": 0.3})
    one.add({"total": 1.5, "lost": 0, "loop": 0.2, "decode": 0.15, "outside": 0.5})
    return one


def test_figures() -> None:
    one = level()
    assert one.tokens_per_second == pytest.approx(100 * 50 / 1.5)
    assert one.lost == 1
    assert (one.late_ms(0.5), one.late_ms(0.99), one.late_ms(1)) == pytest.approx((1, 20, 70))
    assert one.cost_us(one.loop) == pytest.approx(30)
    assert one.host_us == pytest.approx(30 + 20)
    assert one.cost_us(one.outside) == pytest.approx(80)


def test_the_table_shows_them() -> None:
    report = ScaleReport(BENCH, [level()], waiting_kb=12.34)
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    for shown in ("100", "3333", "1.0 / 20.0 / 70.0", "50.0", "20.0", "30.0", "80.0", "12.3 KB"):
        assert shown in text
    assert "waiting stream" not in str(ScaleReport(BENCH, [level()]).table().caption)


def test_the_chart_has_cost_and_lateness() -> None:
    figure = Figure()
    ScaleReport(BENCH, [level(), level(1000)]).draw(figure)
    cost, late = figure.axes
    assert len(cost.lines) == 2 and len(late.lines) == 4
    places: Any = cost.lines[0].get_xdata()
    assert list(places) == [100, 1000]


def test_lateness_and_cost_are_runs_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(side: str, operation: str, arguments: dict[str, Any]) -> dict[str, object]:
        if operation == "waiting":
            return {"bytes": 2000.0}
        if arguments.get("ticks"):
            return {"total": 1.0, "lost": 0, "lateness": [0.001]}
        return {"total": 1.0, "lost": 0, "loop": 0.1, "decode": 0.1, "outside": 0.2}

    calls = fake_workers(monkeypatch, answer)
    write_checkpoint(tmp_path, TINY, "float32")
    told: list[str] = []
    bench = ScaleBench("5m", tmp_path, "float32", (2, 5), 3, 2, 1)
    report = ScaleReport.of(bench, told.append)
    runs = [arguments for _, done, arguments in calls if done == "run"][1:]
    assert [(len(one["prompts"]), one["ticks"]) for one in runs] == [
        (streams, ticks) for streams in (2, 5) for _ in range(2) for ticks in (True, False)
    ]
    assert len({str(one["prompts"]) for one in runs}) == len(runs)
    # The memory is measured in a process that has run nothing yet.
    names = [done for _, done, _ in calls]
    assert names[-4:] == ["load", "waiting", "exit", "exit"]
    assert len(calls[-3][2]["prompts"]) == 5
    assert [(one.streams, len(one.totals), len(one.loop)) for one in report.levels] == [
        (2, 4, 2),
        (5, 4, 2),
    ]
    assert report.waiting_kb == 2.0
    assert report.results()["waiting_stream_kb"] == 2.0  # type: ignore[index]
