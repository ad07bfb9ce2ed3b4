"""The figures of ``bench serve`` out of known rounds, and one real round on a tiny model."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.jobs import Run
from asyncgen_apps.bench.serve import IN_PROCESS, Cell, ServeReport
from asyncgen_apps.bench.settings import ServeBench
from asyncgen_apps.bench.sides.http_client import ask_all
from asyncgen_apps.bench.workers import BenchError
from tests.apps.bench.test_checkpoints import TINY
from tests.apps.openai_http.running import running
from tests.apps.openai_http.test_answer import scripted

if TYPE_CHECKING:
    from pathlib import Path


BENCH = ServeBench("5m", None, "float32", (1, 8), 8, 50, 16, 2, 1, ("continuous", "plain"))


def cell() -> Cell:
    def rounds(*totals: float) -> list[Run]:
        return [Run(total, (total / 10, total / 5), others=0.5) for total in totals]

    return Cell(
        8,
        50,
        {
            "asyncgen": rounds(1.0, 2.0),
            "continuous": rounds(3.0, 3.0),
            "plain": rounds(6.0, 6.0),
            IN_PROCESS: rounds(0.9, 1.7),
        },
    )


def test_figures() -> None:
    one = cell()
    assert one.rate("asyncgen") == pytest.approx(400 / 1.5)
    assert one.ratio() == pytest.approx(2.0), "against the faster one"
    assert one.share() == pytest.approx((0.9 + 0.85) / 2)
    assert one.first_ms("asyncgen", 1.0) == pytest.approx(400)
    assert Cell(8, 50, {"asyncgen": one.rounds["asyncgen"]}).ratio() is None


def test_the_table_and_the_chart() -> None:
    report = ServeReport(BENCH, [cell()])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    for shown in ("2.00 × transformers", "266.7", "88% of it", "8 of 8 runs shared"):
        assert shown in text
    figure = Figure()
    report.draw(figure)
    assert len(figure.axes) == 2
    assert len(figure.axes[0].lines) == 4


@pytest.mark.gate
@pytest.mark.timeout(180)
def test_a_real_round(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    bench = replace(
        BENCH, model=tmp_path, clients=(1, 3), in_process=2, new_tokens=6, runs=1, against=()
    )
    said: list[str] = []
    report = ServeReport.of(bench, said.append)
    assert [one.clients for one in report.cells] == [1, 2, 3]
    assert set(report.cells[1].rounds) == {"asyncgen", IN_PROCESS}
    assert all(one.rate("asyncgen") > 0 for one in report.cells)
    assert said[0] == "starting asyncgen serve"


def test_a_model_with_an_end() -> None:
    with pytest.raises(BenchError, match="equal lengths"):
        ServeReport.of(replace(BENCH, shape="demo"))


BODY: dict[str, object] = {
    "model": "demo",
    "prompt": [1],
    "max_tokens": 5,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def test_it_times_every_stream() -> None:
    with running(scripted()) as served:
        asked = anyio.run(ask_all, served.port, [BODY] * 3, 5)
        assert len(asked.first) == 3
        assert all(0 < first <= asked.total for first in asked.first)


@pytest.mark.parametrize(
    ("body", "tokens", "told"),
    [(BODY, 6, "another length"), ({**BODY, "tools": [1]}, 5, "no stream")],
)
def test_it_complains(body: dict[str, object], tokens: int, told: str) -> None:
    with running(scripted()) as served, pytest.raises(ExceptionGroup) as failed:
        anyio.run(ask_all, served.port, [body], tokens)
    assert told in str(failed.value.exceptions[0])
