"""Count the values of JSON before it is parsed: what comes out of a parser is walked one by one.

A megabyte of text takes a parser and whoever walks the result a few milliseconds, and a megabyte of
empty lists a second. Knows bytes, and no page.
"""

from __future__ import annotations

MOST_DEPTH = 32
"""Deepest nesting; a page's own events reach six."""

_SEPARATORS = b",:[{"
_OPENING, _CLOSING = b"[{", b"]}"
_SHAPE = frozenset(_OPENING + _CLOSING)
_NOT_SHAPE = bytes(set(range(256)) - _SHAPE)


def too_complex(content: bytes, most_values: int) -> str | None:
    """Say what makes a JSON text dear to parse and walk.

    Counted are commas, colons, lists and objects: at least as many as there are values and keys.

    Args:
        content: JSON in UTF-8; of anything else the result means nothing, and comes as fast.
        most_values: Most values and keys.

    Returns:
        The reason for a refusal; ``None`` if it is simple.
    """
    reason = f"holds more than {most_values} values"
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * most_values + 2:
        return reason
    outside = b"".join(plain.split(b'"')[::2])
    if sum(map(outside.count, _SEPARATORS)) > most_values:
        return reason
    if sum(map(outside.count, _CLOSING)) > most_values:
        return reason  # no JSON, and not worth a look at each
    depth = 0
    for mark in outside.translate(None, _NOT_SHAPE):
        depth += 1 if mark in _OPENING else -1
        if depth > MOST_DEPTH:
            return f"is nested deeper than {MOST_DEPTH} levels"
    return None
