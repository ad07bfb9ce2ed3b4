"""Measure how much of the machine other processes use while one of ours is measured.

Two compute threads on two cores collapse when another process takes one of them: without this
figure a benchmark cannot tell a slow library from a busy machine. Linux only; elsewhere nothing is
known.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

PROC = Path("/proc")


class OtherProcesses:
    """Watch of all processes but one, from its creation on.

    Args:
        pid: The process that is measured.
        proc: Folder of process figures; replaced by tests.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._start = perf_counter()
        self._others = self._others_seconds()

    def cores(self) -> float | None:
        """Return how many cores others used on average, ``None`` if not known."""
        others, elapsed = self._others_seconds(), perf_counter() - self._start
        if others is None or self._others is None or elapsed <= 0:
            return None
        return max(0.0, (others - self._others) / elapsed)

    def _others_seconds(self) -> float | None:
        """Return the CPU seconds that all processes but the measured one have used so far."""
        try:
            whole = [int(ticks) for ticks in (self._proc / "stat").read_text().split()[1:9]]
            # The name of a process may hold spaces; the fields after it do not.
            own = (self._proc / str(self._pid) / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return None
        user, nice, system, _idle, _waiting, interrupt, soft_interrupt, stolen = whole
        busy = user + nice + system + interrupt + soft_interrupt + stolen
        ticks = busy - int(own[11]) - int(own[12])
        return ticks / os.sysconf("SC_CLK_TCK")
