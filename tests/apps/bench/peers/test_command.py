from __future__ import annotations

import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from asyncgen_apps.bench import report as reports
from asyncgen_apps.bench.peers.report import BEGIN, END, PeersReport
from asyncgen_apps.cli.app import app
from tests.apps.bench.peers.test_report import report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings of each benchmark, which is not run."""
    seen: list[Any] = []

    def note(
        bench: object, progress: Callable[[str], None], keep: Callable[[PeersReport], None]
    ) -> PeersReport:
        progress("at work")
        seen.append(bench)
        keep(report())
        return report()

    monkeypatch.setattr(PeersReport, "of", note)
    monkeypatch.setattr(
        reports, "emit", lambda report, json, plot: seen.append((report, json, plot))
    )
    return seen


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environments in which vLLM and OpenVINO are installed, and transformers is nowhere."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name)
    )
    for name in ("vllm", "openvino"):
        (tmp_path / "peers" / name).mkdir(parents=True)
        (tmp_path / "peers" / name / "installed").touch()
    monkeypatch.setenv("ASYNCGEN_PEERS", str(tmp_path / "peers"))
    return tmp_path / "peers"


def run(*arguments: str) -> Result:
    return CliRunner(env={"OMP_NUM_THREADS": "2"}).invoke(app, ["bench", "peers", *arguments])


def test_without_options_all_is_measured_with_all_that_are_there(
    asked: list[Any], peers: Path
) -> None:
    result = run()
    assert result.exit_code == 0, result.stderr
    bench, (_, *files) = asked
    assert bench.pythons == {
        "asyncgen": sys.executable,
        "openvino": str(peers / "openvino/bin/python"),
        "vllm": str(peers / "vllm/bin/python"),
    }
    assert bench.missing == (
        "transformers",
        "transformers-thread",
        "transformers-continuous",
        "llamacpp",
    )
    kinds = {row.section for row in bench.rows}
    assert kinds == {"one", "streams", "first", "turn", "behind", "arrivals", "neighbour"}
    one = [row.label for row in bench.rows if row.section == "one"]
    assert one == [
        f"{shape} {dtype}" for shape in ("5m", "135m", "0.5b") for dtype in ("float32", "bfloat16")
    ]
    assert max(row.size for row in bench.rows if row.section == "first") == 16384
    assert (bench.rounds, bench.threads, bench.stored) == (3, 2, "bfloat16")
    assert (bench.folder, files) == (peers / "checkpoints", [None, None])
    assert "at work" in result.stderr


def test_a_small_run(asked: list[Any], peers: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    chosen = ["--peer", "vllm", "--row", "one", "--row", "streams", "--shape", "5m"]
    sizes = ["--size", "streams=1,32", "--dtype", "bfloat16", "--rounds", "1", "--threads", "1"]
    files = ["--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md")]
    result = run(*chosen, *sizes, *files, "--summary", str(page), "--patience", "7")
    assert result.exit_code == 0, result.stderr
    bench, (shown, json_file, plot) = asked
    assert list(bench.pythons) == ["asyncgen", "vllm"] and bench.missing == ()
    assert [row.label for row in bench.rows] == [
        "5m bfloat16",
        "5m bfloat16, 1",
        "5m bfloat16, 32",
    ]
    assert (bench.rounds, bench.threads, bench.patience) == (1, 1, 7.0)
    assert (json_file, plot) == (tmp_path / "a.json", None)
    # What there was is in the file before all is measured.
    assert json.loads(json_file.read_text())["benchmark"] == "peers"
    assert (tmp_path / "a.md").read_text() == shown.markdown()
    assert shown.summary() in page.read_text()


def test_packed_weights(asked: list[Any], peers: Path) -> None:
    result = run("--quantize", "int4")
    assert result.exit_code == 0, result.stderr
    bench, _ = asked
    assert list(bench.pythons) == ["asyncgen", "asyncgen-int4", "openvino-int4"]
    assert bench.missing == ("llamacpp-q4_0", "llamacpp-q4_k_m")
    assert [(row.section, row.shape, row.dtype, row.size) for row in bench.rows] == [
        (section, shape, "bfloat16", size)
        for section, size in (("one", 1), ("streams", 32))
        for shape in ("135m", "0.5b")
    ]


def test_a_small_run_of_packed_weights(asked: list[Any], peers: Path) -> None:
    chosen = ["--peer", "openvino", "--row", "streams", "--size", "streams=8", "--shape", "5m"]
    result = run("--quantize", "int8", "--quantize", "int4", *chosen, "--dtype", "float32")
    assert result.exit_code == 0, result.stderr
    bench, _ = asked
    packed = ["asyncgen-int8", "openvino-int8", "asyncgen-int4", "openvino-int4"]
    assert list(bench.pythons) == ["asyncgen", *packed]
    assert [row.label for row in bench.rows] == ["5m float32, 8"]


@pytest.mark.usefixtures("asked", "peers")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--peer", "sglang"], "--peer sglang: must be one of asyncgen, asyncgen-torch"),
        (["--peer", "llamacpp"], "--peer llamacpp: not installed in"),
        (["--row", "latency"], "--row latency: must be one of one, streams"),
        (["--size", "streams"], "--size streams: must be a kind of row and numbers"),
        (["--size", "streams=0"], "--size streams=0: must be"),
        (["--size", "rows=4"], "--size rows: must be one of one"),
        (["--row", "one", "--size", "first=8"], "--size first: must be one of one"),
        (["--size", "first=40000"], "--size first=40000: texts have at most 32768 tokens"),
        (["--quantize", "int8", "--peer", "vllm"], "--peer vllm: must be one of llamacpp, openv"),
        (["--quantize", "int8", "--peer", "llamacpp"], "--peer llamacpp-q8_0: not installed in"),
        (["--quantize", "int8", "--summary", "a.md"], "--summary beside --quantize: "),
        (["--plot", "chart.gif"], "must end in .png"),
        (["--summary", "nowhere.md"], "--summary nowhere.md: "),
        (["--from", "nowhere.json"], "--from nowhere.json: not the JSON of this benchmark"),
        (["--from", "a.json", "--json", "b.json"], "--json beside --from"),
    ],
)
def test_mistakes_are_found_before_any_work(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert says in result.stderr and result.stderr.count("\n") == 1


def test_an_earlier_run_is_shown_again(asked: list[Any], tmp_path: Path) -> None:
    reports.write_json(report(), tmp_path / "a.json")
    result = run("--from", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md"))
    assert result.exit_code == 0, result.stderr
    ((shown, json_file, plot),) = asked
    assert shown.found == report().found and (json_file, plot) == (None, None)
    assert (tmp_path / "a.md").read_text() == shown.markdown()
