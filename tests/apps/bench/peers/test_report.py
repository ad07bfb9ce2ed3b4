from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from asyncgen_apps.bench.peers import tables
from asyncgen_apps.bench.peers.contenders import OURS
from asyncgen_apps.bench.peers.report import BEGIN, END, PeersReport, put_between_marks
from asyncgen_apps.bench.peers.rounds import Cell, MemoryLimit, Results
from asyncgen_apps.bench.peers.rows import Row
from asyncgen_apps.bench.report import emit, write_json

PAGE = Path(__file__).parents[4] / "apps" / "asyncgen_apps" / "bench" / "README.md"
NAMES = [OURS, "transformers", "transformers-thread", "openvino", "vllm"]


def rates(*values: float) -> list[dict[str, float]]:
    return [{"rate": value, "first_p50": value, "others": 0.05} for value in values]


def report() -> PeersReport:
    one = Cell(
        Row("one", "135m", "bfloat16", 1),
        {
            OURS: rates(70.0, 80.0, 90.0),
            "transformers": rates(20.0, 21.0, 500.0),
            "transformers-thread": rates(25.0),
            "openvino": rates(60.0, 64.0),
        },
        {"vllm": "Engine.load: RuntimeError: no\nroom"},
    )
    first = Cell(
        Row("first", "135m", "bfloat16", 2048),
        {OURS: rates(800.0), "openvino": rates(1000.0), "vllm": rates(600.0)},
    )
    many = [
        Cell(Row("streams", "135m", "bfloat16", size), {OURS: rates(4.0 * size)})
        for size in (1, 8, 32)
    ]
    about = {
        "contenders": NAMES,
        "missing": ["llamacpp"],
        "rounds": 3,
        "threads": 2,
        "stored": "bfloat16",
        "patience": 900.0,
    }
    machine = {"cpu": "A Processor", "cores": 2, "kernels": "asyncgen (AVX-512)", "system": "Linux"}
    told = {OURS: {"version": "0.1"}, "openvino": {"version": "2026"}}
    found = Results([one, first, *many], {"135m": MemoryLimit(250_000_000, 25e9)}, told)
    return PeersReport(about, machine, found)


def test_ratios_are_ours_to_the_best_peer_whatever_is_better() -> None:
    one, first = report().found.cells[:2]
    assert tables.best_peer(one, "rate") == ("openvino", 62.0)
    assert tables.ratio(one, "rate", 62.0) == pytest.approx(80 / 62)
    assert tables.best_peer(first, "first_p50") == ("vllm", 600.0)
    assert tables.ratio(first, "first_p50", 600.0) == pytest.approx(0.75)
    assert tables.best_peer(one, "rate", ["transformers", "transformers-thread"]) == (
        "transformers-thread",
        25.0,
    )
    assert tables.best_peer(one, "gap_p99") is None
    assert tables.ratio(one, "rate", None) is None


def test_we_are_no_peer() -> None:
    cell = Cell(Row("one", "5m", "float32", 1), {OURS: rates(9.0), "asyncgen-torch": rates(8.0)})
    assert tables.best_peer(cell, "rate") is None


def test_a_table_shows_medians_limits_shares_and_failures() -> None:
    grid, *others = tables.grids(report().found, NAMES)
    assert grid.title == (
        "One stream: a prompt of 32 tokens, 64 new; all tokens, prompts included, tokens/s"
    )
    assert grid.rows == (
        (
            "135m bfloat16",
            "80.0",
            "21.0",
            "25.0",
            "62.0",
            "failed",
            "100.0",
            "80 %",
            "1.29 ×",
        ),
    )
    assert grid.head[-3:] == ("limit", "ours of it", "ours / best peer")
    streams = others[0]
    assert streams.head[0] == "shape, dtype, streams"
    assert [row[0] for row in streams.rows] == [
        "135m bfloat16, 1",
        "135m bfloat16, 8",
        "135m bfloat16, 32",
    ]
    assert streams.rows[0][1:] == ("4.0", "–", "–", "–", "–", "–")


def test_a_table_without_us_has_no_ratio() -> None:
    assert next(tables.grids(report().found, ["openvino"])).head[-1] == "ours of it"


def test_notes_list_missing_and_failed_programs() -> None:
    notes = report().notes()
    assert "llama.cpp: not installed (`.ci/peers`)" in notes
    assert "vLLM failed (one 135m bfloat16): Engine.load: RuntimeError: no room" in notes
    assert any("250.0 MB of weights" in line and "100.0 tokens/s" in line for line in notes)
    assert not any("shared the cores" in line for line in notes)
    busy = report()
    busy.found.cells[1].runs["vllm"][0]["others"] = 0.9
    assert "1 of 15 runs shared the cores with other processes" in busy.notes()


def test_the_summary_has_transformers_and_the_best_of_all() -> None:
    grid = tables.summary(report().found)
    assert grid.rows == (
        (
            "one stream, 135m bfloat16, tokens/s",
            "80.0",
            "25.0",
            "3.20 ×",
            "62.0 (OpenVINO)",
            "1.29 ×",
        ),
        ("32 streams, 135m bfloat16, tokens/s", "128.0", "–", "–", "–", "–"),
        (
            "first token of 2,048 tokens, 135m bfloat16, ms",
            "800",
            "–",
            "–",
            "600 (vLLM)",
            "0.75 ×",
        ),
    )


def test_the_machine_is_named() -> None:
    text = report().summary()
    for part in (
        "2 cores of A Processor",
        "asyncgen (AVX-512)",
        "2 threads",
        "medians of 3 interleaved rounds",
        "stored as bfloat16",
        "asyncgen 0.1, OpenVINO 2026",
    ):
        assert part in text
    assert "| one stream, 135m bfloat16, tokens/s | 80.0 | 25.0 | 3.20 × |" in text


def test_text_between_marks_is_replaced() -> None:
    page = f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    once = put_between_marks(page, "new\n")
    assert once == f"before\n\n{BEGIN}\n\nnew\n\n{END}\n\nafter\n"
    assert put_between_marks(once, "new\n") == once
    for wrong in ("", BEGIN, f"{END}{BEGIN}", page + page):
        with pytest.raises(ValueError, match="once each"):
            put_between_marks(wrong, "new")


def test_the_page_has_a_place_for_the_summary() -> None:
    put_between_marks(PAGE.read_text(encoding="utf-8"), "")


def test_report_files_hold_figures_without_local_paths(tmp_path: Path) -> None:
    made = report()
    emit(made, tmp_path / "a.json", tmp_path / "a.png")
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["benchmark"] == "peers" and data["settings"] == made.about
    assert str(Path.home()) not in (tmp_path / "a.json").read_text()
    assert (tmp_path / "a.png").stat().st_size > 10_000
    again = PeersReport.read(tmp_path / "a.json")
    assert again.found == made.found
    assert again.machine == data["hardware"]
    write_json(again, tmp_path / "b.json")
    assert json.loads((tmp_path / "b.json").read_text())["results"] == data["results"]


def test_markdown_has_every_table() -> None:
    text = report().markdown()
    assert text.startswith("Measured by `asyncgen bench peers` on 2 cores of A Processor")
    assert text.count("\n|---|") == 5  # streams have three figures
    assert "**First token of a prompt; first token, median, ms**" in text
    assert text.endswith("RuntimeError: no room\n")


def test_the_terminal_shows_tables_and_notes() -> None:
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(report().table())
    text = console.export_text()
    for part in ("135m bfloat16", "1.29 ×", "failed", "not installed", "100.0 tokens/s"):
        assert part in text


def test_the_picture_has_a_panel_for_each_section() -> None:
    figure = Figure()
    report().draw(figure)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["one, bfloat16", "streams, 135m bfloat16", "first, 135m bfloat16"]
    one, streams, _ = figure.axes
    assert len(one.patches) == len(NAMES)  # a bar each
    assert len(streams.lines) == len(NAMES)  # a line each
    top: Any = one.patches[0]
    assert top.get_height() == pytest.approx(80)  # per cent of what memory allows
