"""Plans the memory of keys and values before anything is computed: a budget becomes pages.

Knows how much memory a device has and how much is free; it allocates nothing.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable


CPU_SHARE = 0.25
"""Default share of the memory that is available when the model has been loaded."""

CUDA_SHARE = 0.90
"""Default share of the device that model and pages take together."""


def plan_pages(
    budget: int | float | None,
    *,
    page_bytes: int,
    wanted: int | None,
    device: torch.device,
    memory: Callable[[torch.device], tuple[int, int]] | None = None,
) -> int:
    """Number of pages that a budget pays for.

    Args:
        budget: Bytes (``int``), or a fraction of the device's memory (``float``, above 0 to 1).
            ``None``: on CUDA what 90 % of the device leaves beside the model, elsewhere a quarter
            of the memory that is available now; in both cases no more than ``wanted``.
        page_bytes: Keys and values of one page, all layers.
        wanted: Pages with which nothing would ever wait for memory; ``None`` if there is no end.
        device: Where the pages will be.
        memory: Bytes that a device has free, and has in all; :func:`device_memory`.

    Returns:
        At least 1; the pages never take more than the budget.

    Raises:
        InvalidRequestError: The budget pays for no page, or is more than the device has.
    """
    free, total = (memory or device_memory)(device)
    if budget is None:
        share = int(CUDA_SHARE * total) - (total - free)
        room = share if device.type == "cuda" else int(CPU_SHARE * free)
        pages = room // page_bytes if wanted is None else min(room // page_bytes, wanted)
        shown: object = f"unset, which is {room} bytes here"
    else:
        room = int(budget * total) if isinstance(budget, float) else budget
        pages, shown = room // page_bytes, budget
        if room > total:
            raise InvalidRequestError("kv_cache_memory", budget, f"the device has {total} bytes")
    if pages < 1:
        raise InvalidRequestError(
            "kv_cache_memory", shown, f"one page of keys and values takes {page_bytes} bytes"
        )
    return pages


def device_memory(device: torch.device) -> tuple[int, int]:
    """Bytes free and bytes in all, of a device or of the machine, limits of a container included.

    Memory of a CUDA device that torch keeps without a use, such as that of a closed engine, is
    given back first.

    Args:
        device: CUDA devices have memory of their own; all others are taken to use the machine's.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = _available() or page * os.sysconf("SC_AVPHYS_PAGES")
    limit, used = (_control_group(name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return free, total
    return max(min(free, limit - used), 0), min(total, limit)


def _available() -> int | None:
    """What Linux says new programs may take without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _control_group(name: str) -> int | None:
    """A figure of the control group, version 2; ``None`` where there is none, or no limit."""
    try:
        return int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
