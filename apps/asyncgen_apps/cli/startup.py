"""Measure the phases between the start of a process and its first answer."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path


def process_age(stat: Path = Path("/proc/self/stat")) -> float:
    """Return the seconds since this process was started; its CPU time if that is not known."""
    try:
        # The second field is the name in brackets, which may hold spaces; the 22nd is the start.
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


@dataclass(slots=True)
class Startup:
    """Stop watch with laps.

    Attributes:
        laps: Name and seconds of each phase so far.
        last: End of the last one, in seconds of the process's age.
    """

    laps: list[tuple[str, float]] = field(default_factory=list)
    last: float = 0.0

    def lap(self, name: str) -> None:
        """End a phase; the first one began with the process."""
        now = process_age()
        self.laps.append((name, now - self.last))
        self.last = now

    def line(self) -> str:
        """Return all phases in one line."""
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.laps)
        return f"{parts}: {self.last:.2f} s since the process began"
