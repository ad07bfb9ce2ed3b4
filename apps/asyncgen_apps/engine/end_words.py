"""Say in one word how an answer ended: the same word in the terminal and on every page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen import FinishReason

END_WORDS: Mapping[FinishReason, str] = {
    "stop": "complete",
    "length": "length",
    "incomplete": "incomplete",
    "time": "time",
    "cancelled": "stopped",
    "aborted": "closed",
    "error": "failed",
}
"""Word of each reason of an end: ``length`` and ``time`` are the limits that were reached,
``incomplete`` is an answer without all of its shape, ``closed`` is the engine."""
