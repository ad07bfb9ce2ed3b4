"""Numbers and lists of other libraries as Python's own, so that rules and files know one kind.

Knows neither numpy nor torch: what can say what it is in plain values (``tolist``) is asked.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from asyncgen.generation.config.parameters import FIELDS, OWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DEEPEST = 4
"""Lists in lists of the deepest parameter: words, their alternatives, their ids."""

_BUILT_IN = frozenset((int, float, bool, str, type(None)))

_LISTED = {each.name: "list[" in each.type or each.type == "Any" for each in (*FIELDS, *OWN)}
"""Parameters that hold values, and whether a tuple in them is as good as a list."""


def plain(value: Any, *, listed: bool = False, depth: int = _DEEPEST) -> Any:
    """Numbers, arrays and tensors as numbers and lists; anything else as it is.

    Args:
        value: Any value; numbers are also looked for in its lists, tuples, sets and dicts.
        listed: Whether tuples become lists.
        depth: How many of these are gone into.
    """
    kind = type(value)
    if kind in _BUILT_IN:
        return value
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    if not depth or kind not in (list, tuple, set, frozenset, dict):
        return value
    if kind is dict:
        if _are_built_in(value.values()) and {tuple}.issuperset(map(type, value)):
            if _are_built_in(chain.from_iterable(value)):  # biases, as many as there are tokens
                return dict(value)
        return {
            plain(key, depth=depth - 1): plain(inner, listed=listed, depth=depth - 1)
            for key, inner in value.items()
        }
    made = list if listed and kind is tuple else kind
    if _are_built_in(value):
        return made(value)
    return made(
        each if type(each) in _BUILT_IN else plain(each, listed=listed, depth=depth - 1)
        for each in value
    )


def _are_built_in(values: Iterable[Any]) -> bool:
    """Tell whether all values are built in, without a call for each."""
    return _BUILT_IN.issuperset(map(type, values))


def plain_value(name: str, value: Any) -> Any:
    """The value of a parameter as plain values, where it holds some; an object stays one."""
    if type(value) in _BUILT_IN or name not in _LISTED:
        return value
    return plain(value, listed=_LISTED[name])


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by name, their values plain."""
    return {name: plain_value(name, value) for name, value in values.items()}
