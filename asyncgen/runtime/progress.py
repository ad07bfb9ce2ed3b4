"""Report the progress of long work: a bar for work longer than a second, or calls of a function.

Nothing is shown without a terminal on stderr, and tqdm is imported only for a bar.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO, TypeAlias

from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from types import TracebackType


_DELAY = 1.0
_log = logging.getLogger("asyncgen.progress")

ProgressOption: TypeAlias = Callable[[str, int, int], object] | Literal[False] | None
"""``None``: a bar, where there is a terminal and the work takes longer than a second. ``False``:
nothing. Or what is called with what is done, how much of it, and how much that is in all (which
may grow while files are found): ``("downloading", bytes, bytes)``,
``("loading weights", bytes, bytes)``, ``("prefill", tokens, tokens)`` for a prompt of more than one
chunk, ``("answering prompts", prompts, prompts)``. It is called on the thread that works, and
must be quick; what it raises is logged.
"""


def progress_option(value: object) -> str | None:
    """Check a `ProgressOption`; return the allowed values if it is invalid."""
    if value is None or value is False or callable(value):
        return None
    return "must be None (automatic), False, or a function of what, done and total"


def tell(progress: Callable[[str, int, int], object], what: str, done: int, total: int) -> None:
    """Call the user's function; an error of it does not stop the work."""
    try:
        run_user_code(progress, what, done, total)
    except BaseException as error:
        request_failure(error)
        try:
            _log.exception("`progress` raised")
        except BaseException as unlogged:  # a filter of the user's may raise
            request_failure(unlogged)


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal.

    The stand-in of a terminal application for stderr may claim to be one, but has no file
    descriptor of one, and may lack other methods of a file. stderr is ``None`` under pythonw, and a
    closed stream raises.
    """
    try:
        return stream is not None and stream.isatty() and os.isatty(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return False


class Progress:
    """Counts bytes, or another unit, and shows a bar after one second.

    Use as a context manager; leaving it removes the bar.

    Args:
        total: Total count.
        label: Text before the bar.
        unit: Unit of the count.
        progress: A bar, nothing, or a function; see `ProgressOption`.
        stream: Stream of the bar; ``sys.stderr`` if left out.
        clock: Returns seconds; replaced by tests.
    """

    def __init__(
        self,
        total: int,
        label: str,
        *,
        unit: str = "B",
        progress: ProgressOption = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._label = label
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._call = progress if callable(progress) else None
        self._enabled = progress is None and is_terminal(self._stream)
        self._clock = clock
        self._done = 0
        self._start = clock()
        self._bar: Any = None

    def __enter__(self) -> Self:
        """Start the clock."""
        self._start = self._clock()
        self.advance(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int) -> None:
        """Add to the count."""
        self._done += count
        if self._call is not None:
            tell(self._call, self._label, self._done, self._total)
        if not self._enabled:
            return
        if self._bar is not None:
            self._bar.update(count)
        elif self._clock() - self._start > _DELAY:
            self._bar = self._show()

    def _show(self) -> Any:
        from tqdm import tqdm

        class Bar(tqdm):
            # Above 0, tqdm starts a thread that outlives the bar.
            monitor_interval = 0

        return Bar(
            total=self._total,
            initial=self._done,
            desc=self._label,
            unit=self._unit,
            unit_scale=self._unit == "B",
            leave=False,
            file=self._stream,
        )
