"""Tell code that works for a caller whether anybody still waits for it.

Python that works long asks now and then, and ends by an error of its own. Knows nothing of who
waits.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_is_wanted: ContextVar[Callable[[], bool]] = ContextVar("is_wanted", default=lambda: True)


def is_wanted() -> bool:
    """Return whether somebody waits for what this thread does."""
    return _is_wanted.get()()


@contextmanager
def while_wanted(asked: Callable[[], bool]) -> Iterator[None]:
    """Have `is_wanted` ask a function while the block runs."""
    token = _is_wanted.set(asked)
    try:
        yield
    finally:
        _is_wanted.reset(token)
