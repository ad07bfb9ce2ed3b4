"""How calls are read while their text comes: readers that wait for more, and what they raise."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

Reading: TypeAlias = Generator[None, None, Any]
"""Reads on until its text is not enough; the next text resumes it."""


class MalformedCallError(Exception):
    """A call that is not written as its format has it; the message says what is wrong."""
