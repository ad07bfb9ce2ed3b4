from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from asyncgen_apps.bench import report as reports
from asyncgen_apps.bench.concurrency import ConcurrencyReport
from asyncgen_apps.bench.loop import LoopReport
from asyncgen_apps.bench.scale import ScaleReport
from asyncgen_apps.bench.strategies import StrategiesReport
from asyncgen_apps.bench.stream import StreamReport
from asyncgen_apps.bench.structured import StructuredReport
from asyncgen_apps.bench.websocket import WebsocketReport
from asyncgen_apps.bench.workers import BenchError
from asyncgen_apps.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings of each benchmark, which is not run."""
    seen: list[Any] = []

    def note(bench: object, progress: Callable[[str], None]) -> object:
        progress("at work")
        seen.append(bench)
        return object()

    monkeypatch.setattr(StreamReport, "of", note)
    monkeypatch.setattr(LoopReport, "of", note)
    monkeypatch.setattr(StrategiesReport, "of", note)
    monkeypatch.setattr(ConcurrencyReport, "of", note)
    monkeypatch.setattr(ScaleReport, "of", note)
    monkeypatch.setattr(WebsocketReport, "of", note)
    monkeypatch.setattr(StructuredReport, "of", note)
    monkeypatch.setattr(reports, "emit", lambda report, json, plot: seen.append((json, plot)))
    return seen


def run(*arguments: str) -> Result:
    return CliRunner(env={"OMP_NUM_THREADS": "1"}).invoke(app, ["bench", *arguments])


def test_options_of_stream(asked: list[Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    types = ["--dtype", "float32", "--dtype", "bfloat16"]
    sizes = ["--new-tokens", "8", "--prompt-tokens", "4", "--runs", "2", "--threads", "2"]
    files = ["--json", f"{tmp_path}/a.json", "--plot", f"{tmp_path}/a.png"]
    result = run("stream", "--model", str(tmp_path), *types, *sizes, *files)
    assert result.exit_code == 0, result.stderr
    bench, (json, plot) = asked
    assert bench.model == tmp_path and bench.dtypes == ("float32", "bfloat16")
    assert (bench.new_tokens, bench.prompt_tokens, bench.runs, bench.threads) == (8, 4, 2, 2)
    assert (json.name, plot.name) == ("a.json", "a.png")
    assert "at work" in result.stderr


def test_options_of_loop(asked: list[Any]) -> None:
    assert run("loop", "--shape", "5m", "--dtype", "bfloat16", "--runs", "1").exit_code == 0
    bench, files = asked
    assert (bench.shape, bench.dtype, bench.runs) == ("5m", "bfloat16", 1)
    assert files == (None, None)


def test_options_of_strategies(asked: list[Any]) -> None:
    chosen = ["--strategy", "dola", "--strategy", "greedy", "--shape", "5m", "--runs", "1"]
    assert run("strategies", *chosen, "--dtype", "bfloat16").exit_code == 0
    bench, _ = asked
    assert (bench.shape, bench.dtypes, bench.runs) == ("5m", ("bfloat16",), 1)
    assert [case.name for case in bench.cases] == ["greedy", "dola"]


@pytest.mark.usefixtures("asked")
def test_an_unknown_strategy_is_named_with_those_there_are() -> None:
    result = run("strategies", "--strategy", "guessing")
    assert result.exit_code == 1
    assert "--strategy guessing: must be one of greedy, sampling" in result.stderr


def test_options_of_concurrency(asked: list[Any]) -> None:
    sizes = ["--streams", "1", "--streams", "32", "--prompt-tokens", "4", "8"]
    others = ["--against", "continuous", "--device", "cuda", "--dtype", "bfloat16"]
    result = run("concurrency", "--shape", "8b", *sizes, *others)
    assert result.exit_code == 0, result.stderr
    bench, files = asked
    assert (bench.shape, bench.device, bench.dtypes) == ("8b", "cuda", ("bfloat16",))
    assert (bench.streams, bench.prompt_tokens) == ((1, 32), (4, 8))
    assert bench.sides == ("asyncgen", "continuous")
    assert (bench.made, bench.length, files) == (True, 72, (None, None))


def test_concurrency_measures_all_sizes_on_both_types_by_default(asked: list[Any]) -> None:
    assert run("concurrency").exit_code == 0
    bench = asked[0]
    assert (bench.shape, bench.streams) == ("135m", (1, 4, 8, 16, 32, 64))
    assert bench.dtypes == ("float32", "bfloat16")
    assert (bench.new_tokens, bench.prompt_tokens, bench.device) == (64, (16, 64), "cpu")
    assert bench.sides == ("asyncgen", "continuous", "padded")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shape", "8b"], "add --device cuda"),
        (["--shape", "1b"], "--shape 1b: a CPU takes too long"),
        (["--prompt-tokens", "9", "8"], "the shortest prompt comes first"),
    ],
)
def test_mistakes_of_concurrency(arguments: list[str], says: str) -> None:
    result = run("concurrency", *arguments)
    assert result.exit_code == 1
    assert says in result.stderr and result.stderr.count("\n") == 1


def test_options_of_scale(asked: list[Any]) -> None:
    assert run("scale", "--streams", "100", "--streams", "200", "--runs", "2").exit_code == 0
    bench, _ = asked
    assert (bench.shape, bench.streams, bench.runs) == ("5m", (100, 200), 2)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("command", ["stream", "loop", "strategies", "concurrency", "scale"])
@pytest.mark.parametrize("missing", ["transformers", "matplotlib"])
def test_missing_package_is_named_with_install_command(
    command: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    result = run(command, "--plot", "x.png")
    assert result.exit_code == 1
    assert result.stderr == f'error: {missing} not installed: pip install "asyncgen[bench]"\n'


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--model", "/"], "no config.json"), (["--plot", "chart.gif"], "must end in .png")],
)
def test_mistakes_are_found_before_any_work(arguments: list[str], says: str) -> None:
    result = run("stream", *arguments)
    assert result.exit_code == 1
    assert says in result.stderr and result.stderr.count("\n") == 1


def test_a_side_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise BenchError("TransformersReader.load: OSError: no such file")

    monkeypatch.setattr(StreamReport, "of", fail)
    result = run("stream")
    assert result.exit_code == 1
    assert result.stderr == "error: TransformersReader.load: OSError: no such file\n"


def test_options_of_websocket(asked: list[Any]) -> None:
    result = run("websocket", "--crowd", "7x3", "--streams", "2", "--no-stall", "--idle", "0")
    assert result.exit_code == 0, result.stderr
    bench, _ = asked
    assert (bench.shape, bench.crowds, bench.streams) == ("5m", ((7, 3),), (2,))
    assert (bench.stall, bench.idle, bench.delayed, bench.most) == (False, 0, 100, 100)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("crowd", "says"), [("7", "as in 50x20"), ("0x1", "as in"), ("1x65", "64")]
)
def test_a_crowd_that_cannot_be(crowd: str, says: str) -> None:
    result = run("websocket", "--crowd", crowd)
    assert result.exit_code == 1
    assert f"--crowd {crowd}" in result.stderr and says in result.stderr


def test_options_of_structured(asked: list[Any]) -> None:
    result = run("structured", "--part", "all", "--streams", "4", "--runs", "1", "--shape", "5m")
    assert result.exit_code == 0, result.stderr
    bench, _ = asked
    assert (bench.parts, bench.streams, bench.runs, bench.shape) == (("all",), 4, 1, "5m")
    assert bench.temperature == 0.0 and bench.dtype == "float32"
