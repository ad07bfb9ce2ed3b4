"""Keep an old name of a property for one release, with a warning."""

from __future__ import annotations

import warnings
from typing import Any


def renamed(old: str, new: str) -> property:
    """Make a property of the old name that warns and reads the new one.

    Args:
        old: Name that users may have typed.
        new: Name of the property that replaces it.
    """

    def read(self: Any) -> Any:
        message = f"`{old}` is deprecated and goes with the next release; read `{new}`"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(read, doc=f"Old name of `{new}`.")
