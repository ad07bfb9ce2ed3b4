"""Prepare this process for computing: thread count, OpenMP waiting policy, garbage collection.

OpenMP reads its environment once, when torch is imported: call :func:`prepare_process` before.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping


CPU_FOLDER = Path("/sys/devices/system/cpu")
CGROUP_FOLDER = Path("/sys/fs/cgroup")
SHORT_SPIN = {"GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "1"}
"""Rounds for GNU's OpenMP, milliseconds for LLVM's and Intel's."""


def prepare_process(
    threads: int | None = None, environ: MutableMapping[str, str] | None = None
) -> int:
    """Set the number of torch's threads and their waiting; call before torch is imported.

    - ``OMP_NUM_THREADS`` becomes ``threads``; without ``threads``, the user's value stays, and
      :func:`usable_cores` is the default. (torch alone counts the cores of the machine, also those
      that a container may not use, and two teams on one core are slower than one.)
    - A compute thread without work spins for about a hundred microseconds and then sleeps
      (``GOMP_SPINCOUNT``, ``KMP_BLOCKTIME``), unless the user chose an ``OMP_WAIT_POLICY``. By
      default it spins for milliseconds, and where another process or our own event loop needs
      its core, the thread that has work waits for the one that spins: two cores, 135M parameters,
      one busy process: 1 token/s. The count is such that it still spins when the next operator
      comes. Milliseconds a token on two cores (Sapphire Rapids, bfloat16), idle and beside a
      busy process: 29 and 45 at 2,500 rounds, 22 and 57 at 5,000, 21 and 71 at 8,000.

    Nothing that the user has set is changed, except by an explicit ``threads``.

    Args:
        threads: Number of compute threads, at least 1; ``None`` chooses.
        environ: The environment to change; the process's own by default.

    Returns:
        The number of threads that torch will use.
    """
    environ = os.environ if environ is None else environ
    cores = usable_cores()
    if threads is not None:
        environ["OMP_NUM_THREADS"] = str(threads)
    else:
        environ.setdefault("OMP_NUM_THREADS", str(cores))
    # The variable may hold one count for each level of nesting: "4,2".
    first = environ["OMP_NUM_THREADS"].split(",")[0].strip()
    chosen = int(first) if first.isdecimal() and int(first) > 0 else cores
    if "OMP_WAIT_POLICY" not in environ:
        for name, value in SHORT_SPIN.items():
            environ.setdefault(name, value)
    return chosen


def settle() -> None:
    """Exclude all current objects from garbage collection; call when all is loaded.

    A collection of them takes a tenth of a second, in which every stream stands still.
    """
    gc.freeze()


def usable_cores(cpu_folder: Path = CPU_FOLDER, cgroup_folder: Path = CGROUP_FOLDER) -> int:
    """Count the physical cores that this process may use, at least 1.

    Takes into account the affinity mask, hyper-threads (two of them share one vector unit, so
    they count once) and the CPU quota of the container.
    """
    cpus = _allowed_cpus()
    cores = {_siblings(cpu_folder, cpu) for cpu in cpus}
    quota = _cgroup_quota(cgroup_folder)
    count = len(cores) if quota is None else min(len(cores), int(quota))
    return max(1, count)


def _allowed_cpus() -> Iterable[int]:
    """Return the CPU numbers that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _siblings(cpu_folder: Path, cpu: int) -> str:
    """Name the physical core of a CPU; the CPU itself if not known."""
    try:
        return (cpu_folder / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _cgroup_quota(cgroup_folder: Path) -> float | None:
    """Return the container's CPU quota in CPUs, ``None`` if there is none."""
    for name, read in (("cpu.max", _quota_v2), ("cpu/cpu.cfs_quota_us", _quota_v1)):
        try:
            return read(cgroup_folder / name)
        except (OSError, ValueError):
            continue
    return None


def _quota_v2(file: Path) -> float | None:
    """Read ``<quota or max> <period>`` of cgroup version 2."""
    quota, period = file.read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(file: Path) -> float | None:
    """Read the quota of cgroup version 1; a negative one means none."""
    quota = int(file.read_text())
    period = int(file.with_name("cpu.cfs_period_us").read_text())
    return None if quota <= 0 else quota / period
