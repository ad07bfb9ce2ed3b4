"""Names for parametrised cases."""

from __future__ import annotations

import re

__all__ = ["readable"]


def readable(value: object) -> str:
    """Return what a case is called: its text, without addresses, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:60]
