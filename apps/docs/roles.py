"""Docstrings name other objects by roles (``:class:`X```), which Markdown does not know."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|data|mod):(`+)~?([^`]+)\1")


class Roles(griffe.Extension):
    """Leaves of a role the name alone, as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\2`", obj.docstring.value)
