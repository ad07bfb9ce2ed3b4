"""Narrow the library's own ranges to what a server takes of one request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen import STREAM_PARAMETERS
from asyncgen_apps.serving.limits import MOST_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping


def up_to(name: str, high: float) -> Any:
    """Return the rule of a parameter, with a largest value of the server's own."""
    found: Any = STREAM_PARAMETERS[name].range
    return replace(found, high=high)


ROWS: Mapping[str, Any] = {
    name: up_to(name, MOST_SAMPLES) for name in ("n", "num_return_sequences", "num_beams")
}
"""Rules of the parameters that make rows, by name."""
