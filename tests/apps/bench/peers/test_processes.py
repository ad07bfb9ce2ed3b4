from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.bench.peers import processes
from asyncgen_apps.bench.peers.processes import (
    PeerProcesses,
    Program,
    available_bytes,
    busy_process,
)
from asyncgen_apps.bench.workers import ROOT, BenchError
from tests.apps.bench.peers.stage import NAMES, use_doubles

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen_apps.bench.peers.programs.protocol import Request, Task

PROC = Path("/proc")


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Contenders of the names of the doubles, each in a process of this interpreter."""
    return use_doubles(tmp_path, monkeypatch)


def task(work: Path, **changes: Any) -> Task:
    made: Task = {
        "folder": "nowhere",
        "dtype": "float32",
        "threads": 3,
        "streams": 2,
        "length": 64,
        "cache_bytes": 1000,
        "work": str(work),
    }
    return {**made, **changes}  # type: ignore[typeddict-item]


def request(new_tokens: int = 2) -> Request:
    return {"prompt": [1, 2], "new_tokens": new_tokens, "arrival": 0.0}


def make_field(work: Path, patience: float = 60.0, warm_up: int = 0) -> PeerProcesses:
    return PeerProcesses(
        dict.fromkeys(NAMES, sys.executable),
        task(work),
        weight_bytes=100,
        patience=patience,
        warm_up=[[request(4)]] * warm_up,
        progress=lambda text: None,
    )


def log(work: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (work / "log").read_text().splitlines()]


def state(pid: int) -> str:
    """Of a process as Linux tells it, ``Z`` if there is none."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def comes(true: Callable[[], bool]) -> bool:
    """Tell whether something becomes true within a minute."""
    end = time.monotonic() + 60
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_program_answers_and_is_stopped_in_between(tmp_path: Path) -> None:
    with Program("Good", sys.executable, 3, 60.0) as program:
        assert program.call("load", **task(tmp_path)) == {"version": "1.0"}
        assert comes(lambda: state(program.pid) == "T")
        got = program.call("run", requests=[request()])
        assert got == {"times": [[0.01, 0.02]], "tokens": [[7, 7]]}
        assert comes(lambda: state(program.pid) == "T")
    assert state(program.pid) == "Z"


def test_a_silent_program_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOADING", 300)
    with make_field(tmp_path, patience=0.2) as contenders:
        contenders.load("Silent")
        with pytest.raises(BenchError, match=r"run: no answer within 0\.2 s, so it was killed"):
            contenders.run("Silent", [request()])
        (child,) = [value for _, what, value in log(tmp_path) if what == "child"]
        assert comes(lambda: state(child) == "Z")


def test_a_woken_process_is_stopped_again(tmp_path: Path) -> None:
    with make_field(tmp_path) as contenders:
        for name in ("Good", "Other"):
            contenders.load(name)
        os.kill(contenders.pid("Good"), signal.SIGCONT)
        assert comes(lambda: state(contenders.pid("Good")) == "S")
        contenders.run("Other", [request()])
        assert comes(lambda: state(contenders.pid("Good")) == "T")


def test_a_dying_program_begins_again_but_not_for_ever(tmp_path: Path) -> None:
    with make_field(tmp_path) as contenders:
        for _ in range(2):
            contenders.load("Dying")
            with pytest.raises(BenchError, match="the process ended: illegal instruction"):
                contenders.run("Dying", [request()])
        with pytest.raises(BenchError, match="given up after 2 lost processes: .* illegal"):
            contenders.load("Dying")
    assert [what for _, what, _ in log(tmp_path)] == ["load", "load"]


def test_a_contender_that_cannot_load_is_not_run_again(tmp_path: Path) -> None:
    with make_field(tmp_path) as contenders:
        for _ in range(2):
            with pytest.raises(BenchError, match=r"Unloadable\.load: MemoryError: too large"):
                contenders.load("Unloadable")
        assert contenders.out.keys() == {"Unloadable"}
        contenders.load("Good")
        assert contenders.versions == {"Good": {"version": "1.0"}}


def test_an_operation_that_fails_loses_no_process(tmp_path: Path) -> None:
    with make_field(tmp_path, warm_up=1) as contenders:
        contenders.load("Good")
        pid = contenders.pid("Good")
        broken: Any = [{"prompt": [1]}]
        with pytest.raises(BenchError, match=r"Good\.run: KeyError: 'new_tokens'"):
            contenders.run("Good", broken)
        contenders.load("Good")
        assert contenders.pid("Good") == pid
        assert contenders.run("Good", [request(1)])["tokens"] == [[7]]
    assert [what for _, what, _ in log(tmp_path)] == ["load", "run", "run", "run"]


def test_the_longest_idle_process_frees_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = int(2.5 * 100) + 1000 + processes.LIBRARY_BYTES
    with make_field(tmp_path) as contenders:
        monkeypatch.setattr(processes, "available_bytes", lambda: need)
        contenders.load("Good")
        contenders.load("Other")
        first = contenders.pid("Good")
        free = iter([need - 1, need])
        monkeypatch.setattr(processes, "available_bytes", lambda: next(free))
        contenders.load("Good")  # is there
        contenders.load("Short")
        assert state(contenders.pid("Good")) != "Z" and contenders.pid("Good") == first
        with pytest.raises(KeyError):
            contenders.pid("Other")


def test_programs_do_not_inherit_thread_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    with Program("Environment", sys.executable, 3, 60.0) as program:
        got = program.call("load", **task(tmp_path))
    assert got["OMP_NUM_THREADS"] == "3"
    assert got["ASKED_FOR"] == "3 threads"  # what its file wants
    unwanted = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "PYTHONPATH"}
    assert not unwanted & got.keys()
    ours = processes.clean_environment(3, is_ours=True)
    assert ours["PYTHONPATH"].startswith(str(ROOT)) and "GOMP_SPINCOUNT" not in ours


def test_a_stopped_program_does_not_outlive_a_bench_that_was_killed(
    tmp_path: Path, programs: Path
) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from asyncgen_apps.bench.peers import processes\n"
        "from asyncgen_apps.bench.peers.contenders import CONTENDERS, Contender\n"
        f"processes.PROGRAMS = Path({str(programs)!r})\n"
        "CONTENDERS['Good'] = Contender('Good', 'doubles:Good')\n"
        "program = processes.Program('Good', sys.executable, 1, 60.0)\n"
        f"program.call('load', work={str(tmp_path)!r}, threads=1)\n"
        "print(program.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT.parent)])}
    bench = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert bench.stdout is not None
    pid = int(bench.stdout.readline())
    assert comes(lambda: state(pid) == "T")
    bench.send_signal(signal.SIGKILL)
    bench.communicate()
    assert comes(lambda: state(pid) == "Z")


def test_a_busy_process_spins_while_the_block_runs() -> None:
    def busy() -> set[int]:
        own = {
            int(one)
            for file in (PROC / str(os.getpid()) / "task").glob("*/children")
            for one in file.read_text().split()
        }
        return {pid for pid in own if state(pid) != "Z"}

    before = busy()
    with busy_process():
        (pid,) = busy() - before

        def ticks() -> int:
            return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[11])

        start = ticks()
        assert comes(lambda: ticks() > start + 5)
    assert busy() <= before


def test_available_memory(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 900 kB\nMemAvailable:   100 kB\n")
    assert available_bytes(file) == 102_400
    assert available_bytes(tmp_path / "none") == float("inf")
