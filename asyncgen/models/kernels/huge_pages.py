"""Pages of two megabytes for weights that torch has allocated.

A step reads every weight once, and in pages of four kilobytes the processor looks up an address for
every 64 lines of it: products of a few rows lose a tenth to that. Linux can gather pages that are
in use already (since 6.1); elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, Final

PAGE: Final = 2 << 20
"""Bytes of a huge page."""

COLLAPSE: Final = 25
"""``MADV_COLLAPSE`` of ``linux/mman.h``, which Python's `mmap` does not name."""


def gather_pages(address: int, size: int) -> None:
    """Ask for huge pages of some memory, and of its neighbours in the same pages.

    Args:
        address: Begin of the memory.
        size: Its bytes; less than a quarter of a page is not worth it.
    """
    advise = _advise()
    if advise is None or size < PAGE // 4:
        return
    # One page after another: if a neighbour is not mapped, only its page is refused.
    for page in range(address // PAGE * PAGE, address + size, PAGE):
        advise(page, PAGE, COLLAPSE)


@functools.cache
def _advise() -> Any:
    """Return ``madvise``, or ``None`` on another system."""
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
