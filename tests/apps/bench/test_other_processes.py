from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.bench.other_processes import OtherProcesses

if TYPE_CHECKING:
    from pathlib import Path


def write(proc: Path, busy: int, own: int) -> None:
    """The figures of a machine and of process 7, in ticks."""
    (proc / "7").mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu {busy} 0 0 99999 5 0 0 0 0 0\ncpu0 1 2 3\n")
    (proc / "7/stat").write_text(f"7 (a name) R {'0 ' * 10}{own} 0 0\n")


def test_only_time_of_other_processes_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr("asyncgen_apps.bench.other_processes.perf_counter", lambda: next(clock))
    write(tmp_path, busy=1000, own=100)
    watch = OtherProcesses(7, tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    write(tmp_path, busy=1000 + 5 * ticks, own=100 + 2 * ticks)
    assert watch.cores() == pytest.approx(1.5)


def test_cores_are_none_without_proc_files(tmp_path: Path) -> None:
    assert OtherProcesses(7, tmp_path).cores() is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_busy_process_is_seen() -> None:
    code = "while True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as busy:
        for _ in range(20):  # more than once only where the machine stood still meanwhile
            watch = OtherProcesses(os.getpid())
            time.sleep(0.5)
            cores = watch.cores()
            if cores is None or cores > 0.2:
                break
        busy.kill()
    assert cores is not None and cores > 0.2
