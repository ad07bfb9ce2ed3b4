"""Bound the cost of a regular expression from its text, before the grammar engine sees it.

llguidance follows an expression by its derivatives. Of parts in a row that may be empty, one
derivative holds each part with all behind it, so a single step costs the square of their number,
and nothing stops it: `a?` 30,000 times took 12 seconds and 3.5 GB. Counts such as ``{4000}`` are
not written out, and what they cost is bounded by the engine's own limits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_OPTIONAL_PARTS = 500
"""Most parts of an expression that may be empty or repeat, such as ``a?``: some milliseconds."""

_ESCAPE = re.compile(r"\\(?:[pPux]\{[^{}]*\}|.)", re.DOTALL)
_VERBOSE = re.compile(r"\(\?[a-zA-Z-]*x")


def optional_parts(pattern: str) -> int:
    """Count the parts of a regular expression that may be empty or repeat.

    Args:
        pattern: In the syntax of Rust's crate `regex`. What is no expression has a count as well.
    """
    if _VERBOSE.search(pattern) is not None:  # a comment could hide what is behind a bracket
        return sum(map(pattern.count, "?*{|"))
    count = place = depth = 0
    before = "("  # the character in front that is no part of an escape
    while place < len(pattern):
        character = pattern[place]
        if character == "\\":
            escape = _ESCAPE.match(pattern, place)
            place = len(pattern) if escape is None else escape.end()
            before = "\\"
            continue
        if character == "[":
            depth += 1
        elif character == "]" and depth:
            depth -= 1
        elif not depth:
            opens_group = character == "?" and before == "("
            count += character in "?*{" and not opens_group
            is_edge = before in "(|:" or pattern[place + 1 : place + 2] in ("", ")", "|")
            count += character == "|" and is_edge
        before = character
        place += 1
    # A bracket that stays open or is a character of a set may have hidden parts.
    return count if not depth else sum(map(pattern.count, "?*{|"))


def cost_problem(weights: Iterable[int]) -> str | None:
    """Tell what is wrong with the numbers of optional parts of the expressions of one format."""
    found = list(weights)
    if max(found, default=0) > MOST_OPTIONAL_PARTS:
        return (
            f"it has {max(found)} parts that may be empty or repeat, such as `a?`;"
            f" at most {MOST_OPTIONAL_PARTS} in one expression"
        )
    if sum(each * each for each in found) > MOST_OPTIONAL_PARTS**2:
        return (
            f"its {len(found)} expressions have {sum(found)} parts that may be empty or repeat;"
            f" the sum of their squares is at most {MOST_OPTIONAL_PARTS}**2"
        )
    return None
