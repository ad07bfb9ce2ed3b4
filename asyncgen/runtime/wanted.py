"""Tell code that works for a caller whether anybody still waits for it.

Python that works long asks now and then, and ends by an error of its own. Knows nothing of who
waits.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED: ContextVar[Callable[[], bool]] = ContextVar("asked", default=lambda: True)
"""What `is_wanted` asks; set it while something works for a caller."""


def is_wanted() -> bool:
    """Return whether somebody waits for what this thread does."""
    return ASKED.get()()
