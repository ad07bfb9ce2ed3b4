"""Measure total and free memory of a device, including the limits of containers."""

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
"""Lines of ``memory.stat`` that a control group counts as used although nobody uses them."""

_GIVEN_BACK = (*_KEPT_APART, "active_file")
"""Lines for memory that the kernel reclaims before it refuses memory."""


def device_memory(device: torch.device, *, root: Path = ROOT) -> tuple[int, int]:
    """Return free and total bytes of a device or of the machine, within the limits of a container.

    Unused memory of a CUDA device that torch keeps, such as that of a closed engine, is released
    first. Files in the page cache count as free memory.

    Args:
        device: A CUDA device has its own memory; all others use that of the machine.
        root: Folder of ``proc`` and ``sys``.
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
    """Return the bytes beyond which loading would surely fail; ``None`` if unknown.

    More than the free bytes of `device_memory`: the active page cache and swap space count as well.

    Args:
        device: As in `device_memory`.
        root: As in `device_memory`.
    """
    if device.type == "cuda":
        return device_memory(device)[0]
    available = _meminfo(root, "MemAvailable")
    if available is None:
        return None
    free = available + (_meminfo(root, "SwapFree") or 0)
    return _within_groups(root, free, free, _GIVEN_BACK)[0]


def _meminfo(root: Path, name: str) -> int | None:
    """Return a figure of ``/proc/meminfo`` in bytes."""
    lines = _read(root / "proc/meminfo").splitlines()
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) * 1024 if found else None


def _within_groups(root: Path, free: int, total: int, unused: Sequence[str]) -> tuple[int, int]:
    """Lower both figures to the tightest limit of the control groups of this process."""
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
    """Yield folders of the memory controller from this process's group upwards.

    Each with the file names of its limit and its use, and the prefix of names in ``memory.stat``
    that include the groups below.
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
    """Return the number in a file; ``None`` for "max", and if the file is missing."""
    text = _read(file).strip()
    return int(text) if text.isdecimal() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
