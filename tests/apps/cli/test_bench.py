from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from apps.bench import report as reports
from apps.bench.loop import LoopReport
from apps.bench.stream import StreamReport
from apps.bench.workers import BenchError
from apps.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have been measured, instead of measuring it."""
    seen: list[Any] = []

    def note(bench: object, progress: Callable[[str], None]) -> object:
        progress("at work")
        seen.append(bench)
        return object()

    monkeypatch.setattr(StreamReport, "of", note)
    monkeypatch.setattr(LoopReport, "of", note)
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


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("command", ["stream", "loop"])
@pytest.mark.parametrize("missing", ["transformers", "matplotlib"])
def test_what_is_not_installed_is_named_with_the_remedy(
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
