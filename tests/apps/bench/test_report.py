from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.bench.report import Report, as_object, emit
from asyncgen_apps.bench.stream import StreamReport
from tests.apps.bench.test_loop import report as loop_report
from tests.apps.bench.test_stream import BENCH, comparison

if TYPE_CHECKING:
    from pathlib import Path

REPORTS: list[Report] = [StreamReport(BENCH, [comparison()]), loop_report()]


@pytest.mark.parametrize("report", REPORTS)
def test_the_object_holds_what_is_needed_to_judge(report: Report) -> None:
    written = json.loads(json.dumps(as_object(report)))
    assert written["benchmark"] == report.kind
    assert written["settings"]["threads"] == 2 and written["settings"]["runs"]
    assert written["hardware"]["cpu"] and written["hardware"]["cores"]
    assert "transformers" in written["versions"]
    assert "runs" in json.dumps(written["results"])


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_files_are_written_where_asked(
    report: Report, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plot = tmp_path / "out.json", tmp_path / f"out{suffix}"
    emit(report, file, plot)
    assert json.loads(file.read_text())["benchmark"] == report.kind
    assert plot.stat().st_size > 5000
    assert "written to" in capsys.readouterr().out


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    emit(REPORTS[0], None, None)
    assert list(tmp_path.iterdir()) == []
