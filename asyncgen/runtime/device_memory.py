"""How much memory a device has, and how much of it is free: limits of containers included.

It measures; what is done about it is decided elsewhere.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


ROOT: Final = Path("/")

_KEPT_APART = ("inactive_file",)
"""Lines of ``memory.stat`` that a control group counts as used and that nobody uses."""

_GIVEN_BACK = (*_KEPT_APART, "active_file")
"""Those of what the kernel takes back before it refuses memory to anybody."""


def device_memory(device: torch.device, *, root: Path = ROOT) -> tuple[int, int]:
    """Bytes free and bytes in all, of a device or of the machine, limits of a container included.

    Memory of a CUDA device that torch keeps without a use, such as that of a closed engine, is
    given back first. Files that the kernel only keeps in case they are read again take none.

    Args:
        device: CUDA devices have memory of their own; all others are taken to use the machine's.
        root: Where ``proc`` and ``sys`` lie.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = _meminfo(root, "MemAvailable") or page * os.sysconf("SC_AVPHYS_PAGES")
    return _within_groups(root, free, total, _KEPT_APART)


def memory_to_load(device: torch.device, *, root: Path = ROOT) -> int | None:
    """Bytes beyond which loading would surely fail; ``None`` where nobody knows.

    More than `device_memory` calls free: pages that were read twice and swap space count as well.

    Args:
        device: As of `device_memory`.
        root: As of `device_memory`.
    """
    if device.type == "cuda":
        return device_memory(device)[0]
    available = _meminfo(root, "MemAvailable")
    if available is None:
        return None
    free = available + (_meminfo(root, "SwapFree") or 0)
    return _within_groups(root, free, free, _GIVEN_BACK)[0]


def _meminfo(root: Path, name: str) -> int | None:
    """A figure of the machine in bytes, as Linux tells it."""
    lines = _read(root / "proc/meminfo").splitlines()
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None


def _within_groups(root: Path, free: int, total: int, unused: Sequence[str]) -> tuple[int, int]:
    """Lower both figures to the tightest limit of the control groups that this process is in."""
    for folder, names, prefix in _groups(root):
        limit, used = (_figure(folder / name) for name in names)
        if limit is None or used is None:
            continue
        lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
        stat = {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal()}
        kept = sum(stat.get(prefix + name, 0) for name in unused)
        free = min(free, limit - max(used - kept, 0))
        total = min(total, limit)
    return max(free, 0), total


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str], str]]:
    """Folders of the memory controller from this process's group upwards.

    Each with the names of its limit and its use, and what stands before the names in
    ``memory.stat`` that count what lies below as well.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        second = number == "0" and not controllers
        if not second and "memory" not in controllers.split(","):
            continue
        top = mounts if second else mounts / "memory"
        names = ("memory.max", "memory.current")
        if not second:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        # A container may see the path that it has outside, and its own group as the topmost.
        place = PurePosixPath(path.lstrip("/"))
        steps = [PurePosixPath()] if ".." in place.parts else [place, *place.parents]
        for step in steps:
            yield top / step, names, "" if second else "total_"


def _figure(file: Path) -> int | None:
    """The number that is a file's content; ``None`` for "max", and where there is no file."""
    text = _read(file).strip()
    return int(text) if text.isdecimal() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
