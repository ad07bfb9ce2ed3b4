from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.concurrency import (
    Cell,
    ConcurrencyReport,
    target,
)
from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.settings import ConcurrencyBench
from tests.apps.bench.doubles import Calls, fake_workers
from tests.apps.bench.test_checkpoints import TINY
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path


def bench(**changes: Any) -> ConcurrencyBench:
    settings: dict[str, Any] = {
        "shape": "5m",
        "model": None,
        "dtypes": ("float32",),
        "streams": (1, 8),
        "new_tokens": 10,
        "prompt_tokens": (4, 8),
        "runs": 2,
        "threads": 2,
    }
    return ConcurrencyBench(**{**settings, **changes})


def cell(dtype: str = "float32", streams: int = 8, speed: float = 1.0) -> Cell:
    ours = [
        Run(1.0 / speed, (0.1, 0.2), (0.010, 0.020)),
        Run(2.0 / speed, (0.3, 0.4), (0.030, 0.040)),
        Run(1.0 / speed, (0.5, 0.6), (0.050, 0.060)),
    ]
    runs = {
        "asyncgen": ours,
        "continuous": [Run(1.5), Run(1.6), Run(9.0)],
        "padded": [Run(0.5), Run(0.5), Run(0.5)],
    }
    return Cell(dtype, streams, 10, runs)


@for_each(
    ("dtype", "streams", "wanted"),
    [
        ("float32", 4, None),
        ("float32", 8, 1.5),
        ("float32", 16, 1.7),
        ("float32", 64, 2.0),
        ("bfloat16", 8, None),
        ("bfloat16", 256, 2.5),
        ("float16", 64, None),
    ],
)
def test_targets(dtype: str, streams: int, wanted: float | None) -> None:
    assert target(dtype, streams) == wanted


def test_figures() -> None:
    one = cell()
    assert one.tokens_per_second("asyncgen") == pytest.approx(80)
    assert one.tokens_per_second("continuous") == pytest.approx(50)
    assert one.ratio("continuous") == pytest.approx(1.6)
    assert one.ratio("padded") == pytest.approx(0.5)
    assert (one.first_ms(0.5), one.first_ms(0.99)) == pytest.approx((300, 600))
    assert (one.gap_ms(0.5), one.gap_ms(0.99)) == pytest.approx((30, 60))


def test_scaling_and_bandwidth_need_one_stream() -> None:
    many = cell("bfloat16", 32, 2.0)
    report = ConcurrencyReport(bench(), [many])
    assert report.scaling(many) is None
    assert report.bandwidth_share("bfloat16") is None
    report.cells.append(cell("bfloat16", 1))
    assert report.scaling(many) == pytest.approx(64)
    report.limits["bfloat16"] = {"bytes_per_token": 15e9, "bandwidth": 4e12}
    assert report.bandwidth_share("bfloat16") == pytest.approx(15e9 / 0.030 / 4e12)
    assert "12 % of 4000 GB/s" in str(report.table().caption)


def text_of(report: ConcurrencyReport) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table())
    return console.export_text()


def test_the_table_fits_a_terminal() -> None:
    text = text_of(ConcurrencyReport(bench(), [cell(streams=1), cell(streams=8, speed=10)]))
    for shown in ("float32", "800.0", "50.0", "160.0", "16.00 ≥ 1.5", "5.00", "80.0", "300/600"):
        assert shown in text
    assert "…" not in text


def test_caption_reports_runs_on_a_busy_machine() -> None:
    busy = cell()
    busy.runs["padded"][0] = Run(0.5, others=0.8)
    assert "1 of 9 runs shared the cores" in str(ConcurrencyReport(bench(), [busy]).table().caption)
    assert "shared the cores" not in str(ConcurrencyReport(bench(), [cell()]).table().caption)


def test_only_the_sides_that_were_asked_for() -> None:
    one = cell()
    del one.runs["padded"]
    report = ConcurrencyReport(bench(against=("continuous",)), [one])
    assert "padded" not in str([column.header for column in report.table().columns])
    assert list(one.data()["ratio"]) == ["continuous"]  # type: ignore[call-overload]


def test_the_chart_has_a_panel_for_each_type_and_a_line_for_each_side() -> None:
    figure = Figure()
    kinds = ("float32", "bfloat16")
    cells = [cell(dtype, streams) for dtype in kinds for streams in (1, 8)]
    ConcurrencyReport(bench(dtypes=kinds), cells).draw(figure)
    assert [axes.get_title() for axes in figure.axes] == list(kinds)
    assert [len(axes.lines) for axes in figure.axes] == [3, 3]
    places: Any = figure.axes[0].lines[0].get_xdata()
    assert list(places) == [1, 8]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    def answer(side: str, operation: str, arguments: dict[str, Any]) -> dict[str, object]:
        if operation == "limits":
            return {"bytes_per_token": 1.0, "bandwidth": 2.0}
        return {"total": 1.0, "first": [0.1], "gaps": [0.2]}

    return fake_workers(monkeypatch, answer)


SIDES = ["AsyncgenStreams", "TransformersContinuous", "TransformersPadded"]


def test_runs_are_interleaved_and_prompts_shared(calls: Calls, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    told: list[str] = []
    report = ConcurrencyReport.of(bench(model=tmp_path), told.append)
    loads = [arguments for _, done, arguments in calls if done == "load"]
    assert [(one["streams"], one["length"], one["made"]) for one in loads] == [(8, 18, False)] * 3
    runs = [
        call for call in calls if call[1] == "run" and call[2]["options"]["max_new_tokens"] == 10
    ]
    assert [side for side, _, _ in runs] == SIDES * 4
    prompts = [arguments["prompts"] for _, _, arguments in runs]
    assert [len(one) for one in prompts] == [1, 1, 1, 8, 8, 8] * 2
    assert prompts[3] == prompts[4] == prompts[5] != prompts[9]
    assert all(4 <= len(one) <= 8 for one in prompts[3])
    assert [side for side, done, _ in calls if done == "exit"] == SIDES[::-1]
    assert [(one.streams, len(one.runs["padded"])) for one in report.cells] == [(1, 2), (8, 2)]
    assert told[-1] == "float32: run 2 of 2, 8 streams"


def test_on_an_accelerator_each_side_has_it_to_itself(calls: Calls) -> None:
    large = bench(shape="8b", device="cuda", dtypes=("bfloat16",), against=("continuous",))
    report = ConcurrencyReport.of(large)
    order = [side for side, _, _ in calls]
    assert order == sorted(order)
    loads = [arguments for _, done, arguments in calls if done == "load"]
    assert all(one["made"] and one["device"] == "cuda" for one in loads)
    assert [done for side, done, _ in calls].count("limits") == 1
    assert report.limits["bfloat16"]["bandwidth"] == 2.0
    assert report.bandwidth_share("bfloat16") == pytest.approx(1 / 0.2 / 2)


@pytest.mark.soak
def test_all_sides_answer_in_processes_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_checkpoint(tmp_path, TINY, "float32")
    report = ConcurrencyReport.of(bench(model=tmp_path, streams=(1, 3), new_tokens=4, runs=1))
    assert [one.streams for one in report.cells] == [1, 3]
    for one in report.cells:
        assert one.ratio("continuous") > 0 and one.ratio("padded") > 0
        assert 0 < one.first_ms(0.5) <= one.first_ms(0.99)
    assert "float32" in text_of(report)
