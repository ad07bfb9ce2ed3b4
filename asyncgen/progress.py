"""A progress bar for work that turns out to take longer than a second.

Nothing is shown without a terminal on stderr, and nothing is imported until there is something to
show.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


_DELAY = 1.0


class Progress:
    """Counts bytes, or something else, and shows a bar from the second second on.

    Use as a context manager; leaving it takes the bar away.

    Args:
        total: Bytes in all.
        label: What the bar says in front.
        unit: What is counted.
        enabled: ``False`` never shows a bar.
        stream: Where the bar goes; ``sys.stderr`` if left out.
        clock: Returns seconds; replaced by tests.
    """

    def __init__(
        self,
        total: int,
        label: str,
        *,
        unit: str = "B",
        enabled: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._label = label
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        # stderr is None under pythonw, and a closed stream raises at isatty.
        self._enabled = enabled and bool(
            self._stream
            and not getattr(self._stream, "closed", False)  # what replaces stderr may lack it
            and self._stream.isatty()
        )
        self._clock = clock
        self._done = 0
        self._start = clock()
        self._bar: Any = None

    def __enter__(self) -> Self:
        """Start the clock."""
        self._start = self._clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int) -> None:
        """Count so many more."""
        self._done += count
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
