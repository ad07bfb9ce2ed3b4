"""Tell values that run no code of a user when they are used from those that may.

A number of a derived class, a tensor with ``__torch_function__`` or any object with operators of
its own runs code wherever it is added, compared or copied: also inside of an object of this
library that holds it as an attribute.
"""

from __future__ import annotations

import functools
import types
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.runtime.user_code import OURS, is_of_user

if TYPE_CHECKING:
    from collections.abc import Collection

_PLAIN: frozenset[type] = frozenset(
    (
        *(int, float, bool, str, bytes, complex, range, slice, type(None), type(...)),
        *(torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Generator),
    )
)
_LISTS: frozenset[type] = frozenset((list, tuple, set, frozenset))
_DICTS: frozenset[type] = frozenset((dict, types.MappingProxyType))
_FUNCTIONS: frozenset[type] = frozenset((types.FunctionType, functools._lru_cache_wrapper))
_DEEPEST = 5


def runs_user_code(thing: object) -> bool:
    """Tell whether a call of an object runs code of a user: of its class, or of what it holds."""
    return is_of_user(thing) or not holds_plain(thing)


def is_plain(value: object, depth: int = _DEEPEST) -> bool:
    """Tell whether a value runs no code of a user.

    Args:
        value: Any value; lists, dicts and objects of this library are looked into, as far as the
            names of their attributes are public.
        depth: How many of these are gone into; what lies deeper is not plain.
    """
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind in _LISTS:
        return _are_plain(value, depth)  # type: ignore[arg-type]
    if kind in _DICTS:
        inner: Any = value
        return _are_plain(inner.keys(), depth) and _are_plain(inner.values(), depth)
    if kind in _FUNCTIONS:
        return str(value.__module__).startswith(OURS)
    return kind.__module__.startswith(OURS) and holds_plain(value, depth)


def holds_plain(thing: object, depth: int = _DEEPEST) -> bool:
    """Tell whether the public attributes of an object run no code of a user."""
    held: dict[str, Any] = getattr(thing, "__dict__", {})
    return _are_plain([held[name] for name in [*held] if name[:1] != "_"], depth)


def _are_plain(values: Collection[Any], depth: int) -> bool:
    kinds = set(map(type, values))
    if kinds <= _PLAIN:
        return True
    if kinds == {tuple} and set(map(type, chain.from_iterable(values))) <= _PLAIN:
        return True  # biases, as many as there are tokens
    return depth > 0 and all(is_plain(each, depth - 1) for each in values)
