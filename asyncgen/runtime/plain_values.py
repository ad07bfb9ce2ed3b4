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


def _ids(*kinds: type) -> frozenset[int]:
    """Return what tells classes apart without their hashes, which a metaclass may compute."""
    return frozenset(map(id, kinds))


_PLAIN = _ids(
    *(int, float, bool, str, bytes, complex, range, slice, type(None), type(...)),
    *(torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device, torch.Generator),
)
_LISTS = _ids(list, tuple, set, frozenset)
_ROWS = _ids(list, tuple)
_DICTS = _ids(dict, types.MappingProxyType)
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
    if id(kind) in _PLAIN:
        return True
    if id(kind) in _LISTS:
        return _are_plain(value, depth)  # type: ignore[arg-type]
    if id(kind) in _DICTS:
        inner: Any = value
        return _are_plain(inner.keys(), depth) and _are_plain(inner.values(), depth)
    if kind is functools._lru_cache_wrapper:
        value = getattr(value, "__wrapped__", None)
    if type(value) is types.MethodType and not is_of_user(value.__self__):
        value = value.__func__
    if type(value) is types.FunctionType:
        # Not its module, which `functools.wraps` takes from the function that it stands for.
        return str(value.__globals__.get("__name__")).startswith(OURS)
    return not is_of_user(value) and holds_plain(value, depth)


def holds_plain(thing: object, depth: int = _DEEPEST) -> bool:
    """Tell whether the public attributes of an object run no code of a user."""
    held: dict[str, Any] = getattr(thing, "__dict__", {})
    return _are_plain([held[name] for name in [*held] if name[:1] != "_"], depth)


def _are_plain(values: Collection[Any], depth: int) -> bool:
    kinds = set(map(id, map(type, values)))
    if kinds <= _PLAIN:
        return True
    if kinds <= _ROWS and set(map(id, map(type, chain.from_iterable(values)))) <= _PLAIN:
        return True  # biases, as many as there are tokens; thousands of words
    return depth > 0 and all(is_plain(each, depth - 1) for each in values)
