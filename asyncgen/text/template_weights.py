"""Give each value that a chat template may hold a weight: the characters and items in it.

This is the only list of types: a value of any other is refused by name where it is read. What is
contained several times counts each time, since comparing, hashing and writing read it each time.
"""

from __future__ import annotations

from collections.abc import (
    Iterable,
    Iterator,
    ItemsView,
    KeysView,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from datetime import date, time, timedelta
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, NamedTuple

from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference, Undefined
from jinja2.utils import Joiner, Namespace

from asyncgen.text.message_forms import Null

EACH = 8
"""Weight of an entry of a container beside what it contains."""

MOST_DEPTH = 100
"""Containers within one another. Python hashes deeper ones until the process dies."""

VIEWS = (KeysView, ValuesView, ItemsView)

_CONTAINERS = (Mapping, Sequence, Set, *VIEWS)
_SHORT = frozenset({bool, float, type(None), complex, date, time, timedelta, Null})
_SHORTS = tuple(_SHORT)
# Written by their kind or address, compared and hashed by it.
_OPAQUE = (
    BlockReference,
    BuiltinMethodType,
    FunctionType,
    Iterator,
    Joiner,
    LoopContext,
    Namespace,
    TemplateReference,
    Undefined,
    type,
)
_WEIGHED = 4  # work of weighing an entry that is a text
_MEASURED = 40  # of another one
_NAMED = 128  # weight of what is written by its kind or name, beside a name


class Weight(NamedTuple):
    """Weight of a value."""

    characters: int
    items: int = 1
    """Values within it, itself included."""
    depth: int = 0
    """Containers within one another."""
    unknown: str | None = None
    """Type of a value within it that has no weight."""


_WEIGHT_SHORT = Weight(EACH)
_WEIGHT_OPAQUE = Weight(_NAMED)


class Weights:
    """Weights of values; nothing in the sandbox changes a container, so each is weighed once.

    Whoever inherits says by ``work`` what weighing costs.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # By identity; the entry keeps the object alive, so its identity stays unique.
        self._known: dict[int, tuple[object, Weight]] = {}

    def work(self, units: int) -> None:
        """Count items that are read."""

    def measure(self, value: Any, level: int = 0) -> Weight:
        """Weigh a value.

        Args:
            value: Of any type.
            level: Containers around it.

        Raises:
            SecurityError: It is nested too deeply.
        """
        kind = type(value)
        if kind in _SHORT:
            return _WEIGHT_SHORT
        if isinstance(value, str):
            return Weight(len(value) if value.isascii() else 4 * len(value))
        if isinstance(value, int):
            return Weight(EACH + value.bit_length() // 8)
        if kind is range:
            return Weight(EACH * (1 + len(value)))
        if isinstance(value, _OPAQUE):
            return _WEIGHT_OPAQUE
        if isinstance(value, _CONTAINERS) and not isinstance(value, bytes | bytearray | memoryview):
            return self._of_container(value, level)
        if isinstance(value, Macro):
            return Weight(_NAMED + 4 * len(value.name or ""))
        if isinstance(value, MethodType):
            return Weight(_NAMED + self.measure(value.__self__, level).characters)
        if isinstance(value, _SHORTS):
            return _WEIGHT_SHORT
        return Weight(EACH, unknown=kind.__name__)

    def _of_container(self, value: Any, level: int) -> Weight:
        known = self._known.get(id(value))
        if known is None:
            weight = self._sum(value, level)
            self._known[id(value)] = value, weight
            return weight
        if level + known[1].depth > MOST_DEPTH:
            raise _too_deep()
        return known[1]

    def _sum(self, value: Any, level: int) -> Weight:
        if level >= MOST_DEPTH:
            raise _too_deep()
        self.work(_WEIGHED * len(value))
        characters, items, depth, unknown = EACH, 1, 0, None
        for part in _parts(value):
            items += 1
            kind = type(part)
            if kind is str:
                characters += EACH + (len(part) if part.isascii() else 4 * len(part))
                continue
            if kind in _SHORT:
                characters += 2 * EACH
                continue
            self.work(_MEASURED)
            more = self.measure(part, level + 1)
            characters += EACH + more.characters
            items += more.items - 1
            depth = max(depth, more.depth)
            unknown = unknown or more.unknown
        return Weight(characters, items, 1 + depth, unknown)


def _parts(value: Any) -> Iterable[Any]:
    """List what a container holds, of a mapping the keys and the values."""
    if isinstance(value, Mapping):
        return (*value, *value.values())
    if isinstance(value, ItemsView):
        return [part for pair in value for part in (*pair, ())]
    return value  # type: ignore[no-any-return]


def _too_deep() -> SecurityError:
    return SecurityError(f"it reads values that are nested more than {MOST_DEPTH} deep")
