"""The command that finds everything out about a device, run on a CPU, and its plan and report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.device.command import main, run
from tests.device.plan import ITEMS, Item, Pace, items_for, keep_to
from tests.device.report import Report

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SCRIPT = Path(__file__).parents[1] / "device_check.py"


@pytest.mark.soak  # half a minute
def test_it_runs_on_a_cpu_from_anywhere(tmp_path: Path) -> None:
    """All of it: every check holds, every figure is there, nothing is left out but for a reason."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--shape", "5m", "--out", "found"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found" / "report.json").read_text())
    rows = {row["name"]: row for row in found["items"]}
    assert list(rows) == [item.name for item in items_for(["5m"], "cpu")]
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert {name for name, verdict in verdicts.items() if verdict == "left out"} == {"pytest"}
    checks = {item.name for item in ITEMS if item.section == "correctness"} - {"pytest"}
    assert {name for name, verdict in verdicts.items() if verdict == "holds"} == checks
    # Everything that only an accelerator uses was really used.
    assert "attention pages" in rows["dtypes"]["says"]
    assert rows["recorded"]["figures"]["steps"] > 10
    assert "sizes recorded" in rows["ahead"]["says"]
    assert rows["company"]["figures"]["preemptions"] > 0
    for side in ("ours", "continuous", "padded"):
        cells = rows[f"5m {side}"]["figures"]["cells"]
        assert len(cells) == 4 and all(cell["tokens_per_second"] > 0 for cell in cells)
    text = (tmp_path / "found" / "report.md").read_text()
    assert "### 5m, tokens/s" in text and "## Where a step's time goes" in text


def item(name: str, seconds: float, rank: int, section: str = "speed", group: str = "") -> Item:
    return Item(name, section, "", seconds, rank, group, "")


def test_least_important_items_are_left_out_first() -> None:
    items = [item("a", 10, 1), item("b", 30, 3), item("c", 10, 3), item("d", 10, 2)]

    def kept(seconds: float, pace: float = 1.0) -> str:
        return "".join(each.name for each in keep_to(items, seconds, pace))

    assert kept(60) == "abcd"
    assert kept(55) == "abd"
    assert kept(55, 2.0) == "ad"
    assert kept(30) == "acd", "what is too long makes room for others"
    assert kept(5) == ""


def test_the_plan_for_a_device_fits_into_its_time_without_what_others_can_tell() -> None:
    items = items_for(["8b", "1b"])
    assert len({each.name for each in items}) == len(items)
    assert [each.section for each in items] == sorted(
        (each.section for each in items), key=["machine", "correctness", "speed", "step"].index
    )
    names = {each.name for each in keep_to(items, 8 * 60, 1.0)}
    assert {"dtypes", "recorded", "ahead", "8b ours", "8b continuous", "profile"} <= names


def test_the_pace_is_that_of_what_is_done() -> None:
    pace = Pace()
    pace.add(item("a", 5, 1), 10)
    assert pace.factor == 1.0
    pace.add(item("b", 5, 1), 20)
    assert pace.factor == 3.0
    pace.add(item("c", 90, 1), 9000)
    assert pace.factor == 4.0


def scripted(orders: Connection, device: str) -> None:
    """Stands for a worker: does what the names of the items say."""
    import time

    while (order := orders.recv()) is not None:
        name = order[0].name
        if name.startswith("dies"):
            os._exit(7)
        if name.startswith("hangs"):
            time.sleep(60)
        verdict = "fails" if name == "wrong" else "holds"
        orders.send({"verdict": verdict, "says": f"pid {os.getpid()}", "seconds": 0.1})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.device.command.serve", scripted)
    monkeypatch.setattr("tests.device.command.LEAST", 2.0)
    monkeypatch.setattr("tests.device.command.START", 8.0)
    monkeypatch.setattr("tests.device.command.FINISH", 0.0)


@pytest.mark.gate
@pytest.mark.usefixtures("impatient")
def test_items_that_die_or_hang_fail_alone(tmp_path: Path) -> None:
    names = ["first", "dies", "second", "hangs", "wrong", "last"]
    items = [item(name, 0.1, 1, group="last" if name == "last" else "all") for name in names]
    report = Report(tmp_path, {})
    said: list[str] = []
    run(items, report, device="cpu", seconds=60, say=said.append)
    rows = {row["name"]: row for row in json.loads((tmp_path / "report.json").read_text())["items"]}
    assert list(rows) == names
    assert rows["dies"]["says"] == "its process ended with 7"
    assert rows["hangs"]["says"] == "ended after 2 s"
    assert [rows[name]["verdict"] for name in ("first", "second", "last")] == ["holds"] * 3
    assert rows["wrong"]["says"] != rows["last"]["says"], "each group has a process of its own"
    assert report.num_wrong == 3 and len(said) == len(names)
    assert "| dies | **error** |" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("impatient")
def test_items_beyond_the_time_are_reported_as_left_out(tmp_path: Path) -> None:
    items = [item("short", 1, 2), item("long", 500, 1), item("other", 1, 1)]
    said: list[str] = []
    run(items, Report(tmp_path, {}), device="cpu", seconds=30, say=said.append)
    rows = {row["name"]: row for row in json.loads((tmp_path / "report.json").read_text())["items"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "long": "left out",
        "short": "holds",
        "other": "holds",
    }
    assert said[-1] == "long: left out: no time"


@pytest.mark.gate
def test_check_stops_without_a_device(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device")
    said: list[str] = []
    assert main(["--out", str(tmp_path / "found")], say=said.append) == 1
    assert "there is no CUDA device; --device cpu" in said[-2]
    assert len(said) == 2


def test_an_item_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--only", "nothing"], say=lambda text: None)
    assert "no item begins so" in capsys.readouterr().err


def test_missing_modules_and_functions_are_reported_as_errors() -> None:
    from tests.device.worker import _answer

    def answer(target: str) -> dict[str, Any]:
        return _answer(None, Item("x", "speed", "", 1, 1, "", target))

    assert answer("no_such_module:f")["verdict"] == "error"
    assert answer("numbers:no_such_function")["says"].startswith("AttributeError")
