from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.bench.figures import (
    Ratio,
    hardware,
    overhead,
    paired_ratio,
    percentile,
    versions,
)
from asyncgen_apps.bench.report import Report, as_object, emit
from asyncgen_apps.bench.stream import StreamReport
from tests.apps.bench.test_loop import report as loop_report
from tests.apps.bench.test_stream import BENCH, comparison
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path


samples = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@for_each(("share", "value"), [(0.5, 500), (0.99, 990), (0.999, 999), (1.0, 1000), (0.0, 1)])
def test_percentiles_of_a_thousand(share: float, value: float) -> None:
    assert percentile(range(1000, 0, -1), share) == value


@given(samples, st.floats(0, 1))
def test_a_percentile_is_a_sample_that_the_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    value = percentile(values, share)
    assert value in values
    assert sum(other <= value for other in values) >= share * len(values) - 1e-6
    assert sum(other < value for other in values) <= share * len(values) + 1e-6


@given(samples, st.floats(0.01, 1), st.floats(0.01, 1))
def test_percentiles_rise(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert percentile(values, low) <= percentile(values, high)
    assert percentile(values, 1) == max(values)


def test_overhead_is_the_median_of_paired_ratios() -> None:
    # The machine slows down from pair to pair; the ratio of neighbours does not care.
    assert overhead([1.02, 2.04, 4.08], [1, 2, 4]) == pytest.approx(0.02)
    with pytest.raises(ValueError, match="zip"):
        overhead([1.0], [1.0, 2.0])


def test_the_machine_is_described() -> None:
    assert hardware()["cpu"]
    assert versions()["torch"][0].isdigit()


REPORTS: list[Report] = [StreamReport(BENCH, [comparison()]), loop_report()]


@pytest.mark.parametrize("report", REPORTS)
def test_report_object_holds_settings_and_hardware(report: Report) -> None:
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


def test_emit_writes_no_file_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    emit(REPORTS[0], None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_ratio_of_pairs_has_an_interval() -> None:
    same = paired_ratio([(2.0, 4.0)] * 3)
    assert (same.mean, same.low, same.high) == pytest.approx((0.5, 0.5, 0.5))
    found = paired_ratio([(1.0, 1.0), (1.0, 4.0)])
    assert found.mean == pytest.approx(0.5)
    assert found.low * found.high == pytest.approx(0.25)
    assert found.high / found.mean == pytest.approx(math.exp(12.706 * math.log(2)))
    assert paired_ratio([(1.0, 1.0)]) == Ratio(1.0, 0.0, math.inf)
