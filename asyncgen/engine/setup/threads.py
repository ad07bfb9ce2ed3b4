"""How many threads torch computes with, for as long as an engine is open.

Torch keeps a number for each thread, and one that threads begin with which use it for the first
time; setting one on a thread sets both. So what an engine sets is set back when it closes.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


_lock = threading.Lock()
_asked: dict[object, int] = {}  # by those that are inside, the latest last
_before = 0
_lowered = threading.local()


@contextmanager
def computing_threads(count: int | None) -> Iterator[None]:
    """Compute on this thread with so many threads; enter and leave it on the same one.

    Whoever leaves last sets back what was there at the beginning; before that what the latest of
    those inside has asked for stays.

    Args:
        count: OpenMP threads; ``None`` leaves torch's choice.
    """
    global _before
    if count is None:
        try:
            yield
        finally:
            _raise()
        return
    import torch

    key = object()
    with _lock:
        if not _asked:
            _before = torch.get_num_threads()
        _asked[key] = count
        torch.set_num_threads(count)
    try:
        yield
    finally:
        _raise()
        with _lock:
            del _asked[key]
            torch.set_num_threads(next(reversed(_asked.values()), _before))


def lower_threads(count: int) -> None:
    """Compute on this thread with fewer threads than it has, until `computing_threads` is left."""
    import torch

    if not hasattr(_lowered, "before"):
        _lowered.before = torch.get_num_threads()
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _raise() -> None:
    """Set back what `lower_threads` has changed."""
    before = _lowered.__dict__.pop("before", None)
    if before is not None:
        import torch

        torch.set_num_threads(before)
