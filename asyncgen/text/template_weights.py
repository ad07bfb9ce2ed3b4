"""Give each value that a chat template may hold a weight: the characters and items in it.

This is the only list of types: a value of any other is refused by name where it is read. What is
contained several times counts each time, since comparing, hashing and writing read it each time.
"""

from __future__ import annotations

from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    Set,
    ValuesView,
)
from datetime import date, time, timedelta
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, TypeAlias

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
_PLAIN_CONTAINERS = frozenset({dict, list, tuple})
_SHORT = frozenset({bool, float, type(None), complex, date, time, timedelta, Null})
_SHORTS: tuple[Any, ...] = tuple(_SHORT)
# Written by their kind or address, compared and hashed by it.
_OPAQUE: tuple[type, ...] = (
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
_WEIGHED = 8  # work of weighing an entry that is a text
_MEASURED = 40  # of another one
_OTHERS = 1024  # of these that are counted at once
_SQUARED = 2**13  # bits of a number, squared, that are written in the time of a character
_NAMED = 128  # weight of what is written by its kind or name, beside a name


Weight: TypeAlias = tuple[int, int, int, str | None]
"""Characters; values within it, itself included; containers within one another; unknown type."""

_WEIGHT_SHORT: Weight = (EACH, 1, 0, None)
_WEIGHT_OPAQUE: Weight = (_NAMED, 1, 0, None)


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
        if kind in _PLAIN_CONTAINERS:
            return self._of_container(value, level)
        if kind in _SHORT:
            return _WEIGHT_SHORT
        if isinstance(value, str):
            return (len(value) if value.isascii() else 4 * len(value), 1, 0, None)
        if isinstance(value, int):
            bits = value.bit_length()  # to write a number takes their square
            return (EACH + bits // 8 + bits * bits // _SQUARED, 1, 0, None)
        if kind is range:
            return (EACH * (1 + len(value)), 1, 0, None)
        if isinstance(value, _OPAQUE):
            return _WEIGHT_OPAQUE
        if isinstance(value, _CONTAINERS) and not isinstance(value, bytes | bytearray | memoryview):
            return self._of_container(value, level)
        if isinstance(value, Macro):
            return (_NAMED + 4 * len(value.name or ""), 1, 0, None)
        if isinstance(value, MethodType):
            return (_NAMED + self.measure(value.__self__, level)[0], 1, 0, None)
        if isinstance(value, _SHORTS):
            return _WEIGHT_SHORT
        return (EACH, 1, 0, kind.__name__)

    def _of_container(self, value: Any, level: int) -> Weight:
        known = self._known.get(id(value))
        if known is None:
            return self._sum(value, level)
        if level + known[1][2] > MOST_DEPTH:
            raise _too_deep()
        return known[1]

    def _sum(self, value: Any, level: int) -> Weight:
        if level >= MOST_DEPTH:
            raise _too_deep()
        self.work(_WEIGHED * len(value))
        if type(value) is dict:
            parts: Iterable[Any] = (*value, *value.values())
        else:
            parts = value if type(value) in _PLAIN_CONTAINERS else _parts(value)
        characters, items, depth, unknown, others = EACH, 1, 0, None, 0
        for part in parts:
            items += 1
            kind = type(part)
            if kind is str:
                characters += EACH + (len(part) if part.isascii() else 4 * len(part))
                continue
            if kind in _SHORT:
                characters += 2 * EACH
                continue
            others += 1
            if others % _OTHERS == 0:
                self.work(_MEASURED * _OTHERS)
            find = self._of_container if kind in _PLAIN_CONTAINERS else self.measure
            more, number, below, strange = find(part, level + 1)
            characters += EACH + more
            items += number - 1
            if below > depth:
                depth = below
            unknown = unknown or strange
        weight = (characters, items, 1 + depth, unknown)
        self._known[id(value)] = value, weight
        return weight


def _parts(value: Any) -> Iterable[Any]:
    """List what a container holds, of a mapping the keys and the values."""
    if isinstance(value, Mapping):
        return (*value, *value.values())
    if isinstance(value, ItemsView):
        return [part for pair in value for part in (*pair, ())]
    return value


def _too_deep() -> SecurityError:
    return SecurityError(f"it reads values that are nested more than {MOST_DEPTH} deep")
