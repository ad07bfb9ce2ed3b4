"""The figures of ``bench websocket`` out of known runs, and one real benchmark of a tiny model."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.checkpoints import write_checkpoint
from asyncgen_apps.bench.settings import WebsocketBench
from asyncgen_apps.bench.sides.websocket_client import RawConnection, summarize
from asyncgen_apps.bench.websocket import (
    CrowdResult,
    PairedRuns,
    StalledClient,
    WebsocketReport,
    delays,
)
from asyncgen_apps.bench.workers import BenchError
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path


BENCH = WebsocketBench("5m", None, "float32", (32,), 4, ((3, 2),), 4, True, 8, 4, 2, 1)


def report() -> WebsocketReport:
    stall = StalledClient((0.01, 0.01), (0.02, 0.02), 2048, 1024, None)
    return WebsocketReport(
        BENCH,
        [PairedRuns(32, 10, [1.0, 1.0], [1.25, 1.25])],
        [0.0005, 0.02],
        [CrowdResult(3, 2, 1, 0, 50.0)],
        7.5,
        stall,
    )


def test_the_table_and_the_chart() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report().table())
    text = console.export_text()
    for shown in (
        "256 of 320, 80.0%",
        "0.50 ms",
        "20.00 ms",
        "1 lost",
        "7.5 KB",
        "× 2.00",
        "never",
    ):
        assert shown in text
    figure = Figure()
    report().draw(figure)
    assert len(figure.axes) == 2


def test_delays_of_merged_deltas() -> None:
    put = {"a": (7, [(1.0, 2), (2.0, 4), (3.0, 6)])}
    assert delays(put, {"a": [7, [[1.5, 2], [3.25, 6]]]}) == [0.5, 1.25, 0.25]
    with pytest.raises(BenchError, match="stream a"):
        delays(put, {"a": [8, []]})
    with pytest.raises(BenchError, match="stream a"):
        delays(put, {})


@pytest.mark.soak
def test_a_real_benchmark(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    bench = WebsocketBench("5m", tmp_path, "float32", (2,), 3, ((3, 2),), 4, False, 6, 4, 1, 1)
    got = WebsocketReport.of(bench)
    assert got.pairs[0].share > 0
    assert (got.crowds[0].lost, got.crowds[0].disordered) == (0, 0)
    assert len(got.delay) > 0 and got.stall is None and got.idle_kb is not None


def delta(seq: int, text: str, **more: Any) -> tuple[float, dict[str, Any]]:
    return float(seq), {"type": "delta", "id": "a", "seq": seq, "text": text, "index": 0, **more}


def done(seq: int) -> tuple[float, dict[str, Any]]:
    return 9.0, {"type": "done", "id": "a", "seq": seq, "usage": {"completion_tokens": 5}}


def test_a_whole_stream() -> None:
    one = summarize([delta(1, "ab"), delta(3, "c", first_seq=2), done(4)])["a"]
    assert one.in_order and one.tokens == 5
    assert one.deltas == [(1.0, 2), (3.0, 3)]


@pytest.mark.parametrize("broken", [[delta(2, "b")], [delta(1, "a"), delta(1, "a")], [done(2)]])
def test_a_gap_or_a_repetition(broken: list[tuple[float, dict[str, Any]]]) -> None:
    assert not summarize(broken)["a"].in_order


def test_errors() -> None:
    assert (
        summarize([(1.0, {"type": "error", "id": "a", "code": "internal"})])["a"].error
        == "internal"
    )
    with pytest.raises(RuntimeError, match="too much"):
        summarize([(1.0, {"type": "error", "code": "overloaded", "message": "too much"})])


def test_ends_are_counted_wherever_the_bytes_are_cut() -> None:
    frame = b'{"type":"done","id":"a"}{"type":"error","id":"b"}{"type":"delta"}'
    for cut in range(len(frame) + 1):
        wire = RawConnection(1)
        wire.data_received(frame[:cut])
        wire.data_received(frame[cut:])
        assert (wire.ends, wire.failures) == (1, 1)
