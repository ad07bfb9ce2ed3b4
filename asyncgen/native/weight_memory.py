"""Memory for weights: in pages of two megabytes if the system has such, and freed at once.

A step reads every weight once. In pages of four kilobytes the processor would look up an address
for every 64 lines that it reads: float32 products lose a tenth to that.
"""

from __future__ import annotations

import mmap
import sys
import threading
import weakref
from math import prod
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor


CHUNK: Final = 256 << 20
"""Bytes of address space that weights share; memory is taken as it is written to."""

LINE: Final = 64
"""Size of a cache line; every weight begins at a multiple of it."""

LARGE: Final = 1 << 16
"""Bytes of a passing tensor that are worth a mapping of their own."""

_lock = threading.Lock()
_chunk: weakref.ref[mmap.mmap] | None = None  # freed with the last weight that lies in it
_used = 0


def empty_weight(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Make a tensor with arbitrary content.

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
            chunk = _map(max(CHUNK, size))
            if hasattr(mmap, "MADV_HUGEPAGE"):
                chunk.madvise(mmap.MADV_HUGEPAGE)
            _chunk, _used = weakref.ref(chunk), 0
        offset, _used = _used, _used + size
    return torch.frombuffer(chunk, dtype=dtype, count=count, offset=offset).view(shape)


def empty_temporary(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Make a tensor with arbitrary content, whose memory is freed as soon as it is dropped.

    An allocator may neither return such memory nor reuse it for the next tensor: a checkpoint read
    tensor by tensor took twice its size.

    Args:
        shape: Any.
        dtype: Its type.
    """
    count = prod(shape)
    if count * dtype.itemsize < LARGE or sys.platform == "win32":
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(_map(count * dtype.itemsize), dtype=dtype, count=count).view(shape)


def _map(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
