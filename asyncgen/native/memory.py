"""Memory for weights, in pages of two megabytes where the system has such.

A step reads every weight once. In pages of four kilobytes the processor would look up an address
for every 64 lines that it reads: float32 products lose a tenth to that.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from math import prod
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["empty"]

CHUNK: Final = 256 << 20
"""Bytes of address space that weights share; memory is taken as it is written to."""

LINE: Final = 64
"""Every weight begins at such a multiple: the size of a cache line."""

_lock = threading.Lock()
_chunk: weakref.ref[mmap.mmap] | None = None  # gone with the last weight that lies in it
_used = 0


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor with anything in it.

    Args:
        shape: At least one element.
        dtype: Its type.
    """
    global _chunk, _used
    count = prod(shape)
    size = -(-count * dtype.itemsize // LINE) * LINE
    with _lock:
        chunk = None if _chunk is None else _chunk()
        if chunk is None or _used + size > len(chunk):
            chunk = mmap.mmap(-1, max(CHUNK, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                chunk.madvise(mmap.MADV_HUGEPAGE)
            _chunk, _used = weakref.ref(chunk), 0
        offset, _used = _used, _used + size
    return torch.frombuffer(chunk, dtype=dtype, count=count, offset=offset).view(shape)
