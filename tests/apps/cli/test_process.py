from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from asyncgen_apps.cli.process import prepare_process, settle, usable_cores
from asyncgen_apps.cli.startup import Startup, process_age

if TYPE_CHECKING:
    from pathlib import Path


def machine(folder: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    return folder


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)


@pytest.mark.usefixtures("four_cpus")
def test_hyper_threads_count_once(tmp_path: Path) -> None:
    cpus = machine(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert usable_cores(cpus, tmp_path / "none") == 2


@pytest.mark.usefixtures("four_cpus")
def test_a_machine_that_says_nothing_counts_its_cpus(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path) == 4


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 4), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1)],
)
def test_a_container_may_use_its_quota(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert usable_cores(tmp_path, tmp_path) == cores


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("300000", 3)])
def test_the_older_control_groups_are_read_too(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path, tmp_path) == cores


def test_environment_set_by_the_user_is_kept() -> None:
    environ = {"OMP_NUM_THREADS": "3,2", "OMP_WAIT_POLICY": "ACTIVE"}
    before = dict(environ)
    assert prepare_process(None, environ) == 3
    assert environ == before


def test_an_explicit_number_wins() -> None:
    environ = {"OMP_NUM_THREADS": "3"}
    assert prepare_process(1, environ) == 1
    assert environ["OMP_NUM_THREADS"] == "1"


def test_without_a_wish_the_usable_cores_are_used() -> None:
    environ: dict[str, str] = {}
    assert prepare_process(None, environ) == usable_cores()
    assert environ["OMP_NUM_THREADS"] == str(usable_cores())


def test_compute_threads_spin_briefly_unless_the_user_sets_it() -> None:
    environ: dict[str, str] = {}
    prepare_process(None, environ)
    assert int(environ["GOMP_SPINCOUNT"]) <= 10_000
    own = {"GOMP_SPINCOUNT": "7"}
    prepare_process(None, own)
    assert own["GOMP_SPINCOUNT"] == "7"
    policy = {"OMP_WAIT_POLICY": "ACTIVE"}
    prepare_process(None, policy)
    assert "GOMP_SPINCOUNT" not in policy


def test_age() -> None:
    wanted = time.time() - psutil.Process(os.getpid()).create_time()
    assert process_age() == pytest.approx(wanted, abs=1.5)


def test_systems_without_figures(tmp_path: Path) -> None:
    assert 0 <= process_age(tmp_path / "none") < 1e5
    (tmp_path / "odd").write_text("1 (a b) c")
    assert process_age(tmp_path / "odd") >= 0


def test_laps() -> None:
    startup = Startup()
    startup.lap("import")
    startup.lap("load")
    assert [name for name, _ in startup.laps] == ["import", "load"]
    assert sum(seconds for _, seconds in startup.laps) == pytest.approx(startup.last)
    assert startup.line().startswith("import ")
    assert startup.line().endswith("since the process began")


def test_loaded_objects_are_frozen_for_the_garbage_collector() -> None:
    before = gc.get_freeze_count()  # what was collected to be run
    settle()
    assert gc.get_freeze_count() > before
