"""Tell code that works for a caller whether anybody still waits for it.

Python that works long asks now and then, and ends: by an error of its own, or by `UnwantedError`.
Knows nothing of who waits.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ASKED: ContextVar[Callable[[], bool]] = ContextVar("asked", default=lambda: True)
"""What `is_wanted` asks; set it while something works for a caller, as `asking` does."""


class UnwantedError(BaseException):
    """Nobody waits any more; code that turns errors into others lets it pass, and nobody reads it.

    Whoever said that nobody waits catches it.
    """


@contextmanager
def asking(question: Callable[[], bool]) -> Iterator[None]:
    """Let `is_wanted` ask something, on this thread and while the block runs.

    Args:
        question: Whether somebody waits; called at any time, so it must not wait itself.
    """
    token = ASKED.set(question)
    try:
        yield
    finally:
        ASKED.reset(token)


def is_wanted() -> bool:
    """Return whether somebody waits for what this thread does."""
    return ASKED.get()()


def require_wanted() -> None:
    """End what nobody waits for; ask so between the stages of what works long.

    Raises:
        UnwantedError: Nobody waits.
    """
    if not is_wanted():
        raise UnwantedError
