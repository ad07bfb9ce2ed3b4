from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.settings import StreamBench
from asyncgen_apps.bench.stream import Comparison, StreamReport
from tests.apps.bench.doubles import fake_workers
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path

BENCH = StreamBench("5m", None, ("float32", "bfloat16"), 100, 32, 3, 2)


def comparison(dtype: str = "float32") -> Comparison:
    runs = {
        "asyncgen": [Run(1.02, (0.1,)), Run(2.04, (0.2,)), Run(1.53, (0.3,))],
        "transformers": [Run(4.0, (0.4,)), Run(3.0, (0.4,)), Run(3.5, (0.4,))],
        "loop": [Run(1.0, (1.0,)), Run(2.0, (2.0,)), Run(1.5, (1.5,))],
    }
    return Comparison(dtype, 100, runs, same_text=True)


def test_figures_are_medians() -> None:
    one = comparison()
    assert one.tokens_per_second("asyncgen") == pytest.approx(100 / 1.53)
    assert one.first_token_ms("asyncgen") == pytest.approx(200)
    assert one.ratio == pytest.approx(3.5 / 1.53)
    assert one.streaming_overhead == pytest.approx(0.02)


def test_the_table_shows_them() -> None:
    report = StreamReport(BENCH, [comparison()])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    for shown in ("float32", "65.4", "28.6", "2.29 ×", "+2.0 %", "200.0", "yes"):
        assert shown in text


def test_caption_reports_runs_on_a_busy_machine() -> None:
    quiet, busy = comparison(), comparison()
    busy.runs["loop"][1] = Run(2.0, (1.0,), others=0.9)
    busy.runs["loop"][2] = Run(2.0, (1.0,), others=0.01)
    assert "other processes" not in str(StreamReport(BENCH, [quiet]).table().caption)
    caption = str(StreamReport(BENCH, [quiet, busy]).table().caption)
    assert "1 of 18 runs shared the cores with other processes" in caption


def test_the_chart_has_a_bar_for_each_side_and_type() -> None:
    figure = Figure()
    StreamReport(BENCH, [comparison(), comparison("bfloat16")]).draw(figure)
    (axes,) = figure.axes
    assert len(axes.patches) == 4
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["float32\n2.29 × as fast", "bfloat16\n2.29 × as fast"]


def test_runs_are_interleaved_and_prompts_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = {"first": (0.1,), "total": 1.0, "text": "same"}
    calls = fake_workers(monkeypatch, lambda *_: answer)
    write_checkpoint(tmp_path, TINY, "float32")
    told: list[str] = []
    bench = StreamBench("5m", tmp_path, ("float32",), 4, 8, 2, 1)
    report = StreamReport.of(bench, told.append)
    runs = [call for call in calls if call[1] == "run"][3:]
    sides = ["AsyncgenReader", "TransformersReader", "AsyncgenLoop"]
    assert [side for side, _, _ in runs] == sides * 2
    assert len({tuple(asked["prompts"][0]) for _, _, asked in runs[:3]}) == 1
    assert runs[0][2]["prompts"] != runs[3][2]["prompts"]
    assert [side for side, done, _ in calls if done == "exit"] == sides[::-1]
    assert report.comparisons[0].same_text
    assert report.comparisons[0].streaming_overhead == 0
    assert told[-1] == "float32: run 2 of 2"


@pytest.mark.soak
def test_both_libraries_stream_the_same_text_in_processes_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_checkpoint(tmp_path, TINY, "float32")
    report = StreamReport.of(StreamBench("5m", tmp_path, ("float32",), 4, 8, 1, 1))
    (one,) = report.comparisons
    assert one.same_text
    assert one.ratio > 0 and one.first_token_ms("transformers") > 0
    assert all(0 < run.first[0] <= run.total for runs in one.runs.values() for run in runs)
