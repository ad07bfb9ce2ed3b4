"""Take the ranges of numbers in a body from the library's own table of parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen import STREAM_PARAMETERS
from asyncgen_apps.serving.ranges import ROWS, up_to

if TYPE_CHECKING:
    from collections.abc import Mapping


MAX_TOP_LOGPROBS = 20
_NAMES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
}
"""Names of the API for parameters of the table."""


def _ranges() -> Mapping[str, Any]:
    found = {name: row.range for name, row in STREAM_PARAMETERS.items() if row.range is not None}
    found |= {name: found[ours] for name, ours in _NAMES.items()}
    found |= {**ROWS, "top_logprobs": up_to("top_logprobs", MAX_TOP_LOGPROBS)}
    # Of `/v1/completions`: a number, where the library has a switch and `top_logprobs`.
    found["logprobs"] = found["top_logprobs"]
    found["logit_bias"] = replace(found["presence_penalty"], low=-100, high=100, note="")
    return found


RANGES = _ranges()
"""Rule of each field that is a number of a range, by the name that the client gives it."""


def documentation(name: str) -> str:
    """Return what the table says of a field; empty if it is not there."""
    row = STREAM_PARAMETERS.get(_NAMES.get(name, name))
    return "" if row is None else row.doc


def bounds(name: str) -> dict[str, float]:
    """Return the range of a field in the words of JSON Schema."""
    found = RANGES.get(name)
    if found is None:
        return {}
    limits = {
        "exclusiveMinimum" if found.above else "minimum": found.low,
        "exclusiveMaximum" if found.below else "maximum": found.high,
    }
    return {word: limit for word, limit in limits.items() if limit is not None}
