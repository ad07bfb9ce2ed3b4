"""Turns of the interpreter: how long a thread runs Python while another one waits for it."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT_TURN = 0.001
"""Seconds; Python's own choice is 0.005."""

_lock = threading.Lock()
_usual: list[float] = []
"""One entry a block that runs: what held before the first of them."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Have threads give way to each other after `SHORT_TURN`, as long as the block takes.

    For requests that take tenths of a second of Python, on whichever thread. A step of the streams
    needs the interpreter several times, and the gaps between their tokens were five times as long.
    Not for always: the thread that decodes gives way as soon, also to what would take no time.
    """
    with _lock:
        _usual.append(_usual[0] if _usual else sys.getswitchinterval())
        sys.setswitchinterval(min(SHORT_TURN, _usual[0]))
    try:
        yield
    finally:
        with _lock:
            before = _usual.pop()
            if not _usual:
                sys.setswitchinterval(before)
