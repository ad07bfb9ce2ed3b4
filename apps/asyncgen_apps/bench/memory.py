"""Read how much memory this process has."""

from __future__ import annotations

import gc
from pathlib import Path

STATM = Path("/proc/self/statm")


def resident_bytes(*, collect: bool = True) -> int | None:
    """Return the bytes of this process in memory; ``None`` if not known.

    Args:
        collect: False leaves garbage where it is, which takes no time.
    """
    if collect:
        gc.collect()
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        return None
    import resource

    return pages * resource.getpagesize()
