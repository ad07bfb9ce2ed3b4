"""Free memory of the machine, and within the limits of faked control groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen.runtime.device_memory import device_memory, memory_to_load

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
MB = 1 << 20
UNLIMITED = 9223372036854771712
"""What version 1 says where there is no limit."""


def machine(root: Path, group: str, *, available: int = 8000, swap: int = 0) -> None:
    """A machine with so many MB available, seen from within a control group."""
    (root / "proc/self").mkdir(parents=True)
    meminfo = f"MemTotal: 99 kB\nMemAvailable: {available * 1024} kB\nSwapFree: {swap * 1024} kB\n"
    (root / "proc/meminfo").write_text(meminfo)
    (root / "proc/self/cgroup").write_text(group)


def second(root: Path, path: str, limit: int | None, used: int = 0, **stat: int) -> None:
    """A group of version 2, in MB."""
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text("max\n" if limit is None else f"{limit * MB}\n")
    (folder / "memory.current").write_text(f"{used * MB}\n")
    (folder / "memory.stat").write_text(stat_lines(stat))


def first(root: Path, path: str, limit: int | None, used: int = 0, **stat: int) -> None:
    """A group of version 1, in MB."""
    folder = root / "sys/fs/cgroup/memory" / path
    folder.mkdir(parents=True, exist_ok=True)
    most = UNLIMITED if limit is None else limit * MB
    (folder / "memory.limit_in_bytes").write_text(f"{most}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used * MB}\n")
    own = "inactive_file 1\n"
    (folder / "memory.stat").write_text(own + stat_lines(stat, "total_"))


def stat_lines(stat: dict[str, int], prefix: str = "") -> str:
    return "".join(f"{prefix}{name} {value * MB}\n" for name, value in stat.items())


def free(root: Path) -> float:
    return device_memory(CPU, root=root)[0] / MB


def test_this_machine() -> None:
    free, total = device_memory(CPU)
    assert 0 < free <= total


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    machine(tmp_path, "")
    assert free(tmp_path) == 8000


def test_files_that_were_read_once_are_not_used_memory(tmp_path: Path) -> None:
    """A container of 6 GB that has read a checkpoint of 5 GB."""
    machine(tmp_path, "0::/\n")
    second(tmp_path, "", 6000, 5999, inactive_file=5000, anon=999)
    bytes_free, total = device_memory(CPU, root=tmp_path)
    assert (bytes_free, total) == (5001 * MB, 6000 * MB)


def test_of_nested_groups_the_tightest_counts(tmp_path: Path) -> None:
    machine(tmp_path, "0::/pod/box/job\n")
    second(tmp_path, "pod", 5000, 4500)
    second(tmp_path, "pod/box", 3000, 1000)
    second(tmp_path, "pod/box/job", None, 900)
    assert free(tmp_path) == 500
    second(tmp_path, "pod", 5000, 1500)
    assert free(tmp_path) == 2000


@pytest.mark.parametrize("path", ["/docker/0815", "/../../system.slice/x"])
def test_a_container_that_sees_its_path_outside(tmp_path: Path, path: str) -> None:
    machine(tmp_path, f"0::{path}\n")
    second(tmp_path, "", 1000, 400, inactive_file=100)
    assert free(tmp_path) == 700


def test_version_one(tmp_path: Path) -> None:
    machine(tmp_path, "9:name=systemd:/\n4:cpu,memory:/docker/0815\n0::/\n")
    first(tmp_path, "", None, 70_000)
    first(tmp_path, "docker/0815", 2000, 1900, inactive_file=1500)
    bytes_free, total = device_memory(CPU, root=tmp_path)
    assert (bytes_free, total) == (1600 * MB, 2000 * MB)


def test_a_machine_that_is_fuller_than_the_limit_allows(tmp_path: Path) -> None:
    machine(tmp_path, "0::/\n", available=100)
    second(tmp_path, "", 6000, 10)
    assert free(tmp_path) == 100


def test_a_group_beyond_its_limit_has_nothing_free(tmp_path: Path) -> None:
    machine(tmp_path, "0::/\n")
    second(tmp_path, "", 100, 130, inactive_file=10)
    assert free(tmp_path) == 0


@pytest.mark.parametrize("text", ["", "what is this", "0::", "4:memory:/x", "::::"])
def test_files_that_make_no_sense_limit_nothing(tmp_path: Path, text: str) -> None:
    machine(tmp_path, text)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("lots")
    assert free(tmp_path) == 8000


def test_loading_may_push_out_what_was_read_and_use_swap(tmp_path: Path) -> None:
    machine(tmp_path, "0::/\n", available=900, swap=100)
    assert memory_to_load(CPU, root=tmp_path) == 1000 * MB
    second(tmp_path, "", 800, 790, inactive_file=300, active_file=200)
    assert memory_to_load(CPU, root=tmp_path) == 510 * MB


def test_memory_is_none_if_the_system_reports_none(tmp_path: Path) -> None:
    assert memory_to_load(CPU, root=tmp_path) is None


def test_unused_torch_memory_is_freed_before_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pages of an engine that was closed are free for the next one."""
    free = [3]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(90))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[-1], 100))
    assert device_memory(torch.device("cuda")) == (90, 100)
