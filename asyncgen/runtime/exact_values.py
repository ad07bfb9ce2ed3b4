"""Turn values of other classes into Python's own, without the code of those classes.

A number or a text of a derived class runs code wherever it is compared or hashed: also behind the
call that returned it.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from asyncgen.types import has_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DEEPEST = 4
"""Depth of the deepest parameter: words, their alternatives, their ids."""

_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, dict)
_CONTAINER_IDS = frozenset(map(id, _CONTAINERS))
_ROWS = ({list}, {tuple})

BUILT_IN = frozenset((int, float, bool, str, type(None)))


def exact(value: Any) -> Any:
    """Return a number or text of a derived class as one of Python's own, without the code of that
    class; anything else as it is.
    """
    if type(value) in BUILT_IN:
        return value
    readers: tuple[tuple[type, Callable[[Any], Any]], ...]
    readers = (float, float.__float__), (int, int.__int__), (str, str.__str__)
    for kind, read in readers:
        if isinstance(value, kind):
            return read(value)
    return value


def plain(value: Any, *, listed: bool = False, depth: int = _DEEPEST) -> Any:
    """Return numbers, texts, arrays and tensors as plain ones; anything else as it is.

    Args:
        value: Any value; numbers are also looked for in its lists, tuples, sets and dicts.
        listed: Whether tuples become lists.
        depth: How many of these are gone into.
    """
    kind = type(value)
    if kind in BUILT_IN:
        return value
    if id(kind) not in _CONTAINER_IDS:
        if isinstance(value, (float, int, str)):
            return exact(value)
        if has_list(value):
            return value.tolist()
        kind = next((each for each in _CONTAINERS if isinstance(value, each)), kind)
    if not depth or kind not in _CONTAINERS:
        return value
    value = list(kind.__iter__(value)) if kind is not dict else dict(dict.items(value))
    if kind is dict:
        if _are_built_in(value.values()):
            if _are_built_in(value):  # a vocabulary
                return value
            if {tuple}.issuperset(map(type, value)) and _are_built_in(chain.from_iterable(value)):
                return value  # biases, as many as there are tokens
        return {
            plain(key, depth=depth - 1): plain(inner, listed=listed, depth=depth - 1)
            for key, inner in value.items()
        }
    made = list if listed and kind is tuple else kind
    if _are_built_in(value):
        return made(value)
    kinds = set(map(type, value))
    if depth > 1 and kinds in _ROWS and _are_built_in(chain.from_iterable(value)):
        return made(map(list if listed else kinds.pop(), value))  # thousands of words
    return made(
        each if type(each) in BUILT_IN else plain(each, listed=listed, depth=depth - 1)
        for each in value
    )


def _are_built_in(values: Iterable[Any]) -> bool:
    """Tell whether all values are built in, without a call for each."""
    return BUILT_IN.issuperset(map(type, values))
