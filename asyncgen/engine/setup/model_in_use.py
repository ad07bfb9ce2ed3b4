"""Track the engines that run on a model, and refuse to change its weights meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen.engine.core import Engine


_lock = threading.Lock()
_engines: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Engine]] = weakref.WeakKeyDictionary()
_paused: dict[object, weakref.ref[Engine]] = {}
"""Blocks that hold an engine between two steps."""


def attach(model: Any, engine: Engine) -> None:
    """Note that an engine runs on a model, for as long as the engine exists."""
    with _lock:
        _engines.setdefault(model, weakref.WeakSet()).add(engine)


@contextmanager
def weights_open(engine: Engine) -> Iterator[None]:
    """Let weights be written to while an engine is held between two steps."""
    block = object()
    try:
        _paused[block] = weakref.ref(engine)
        yield
    finally:
        _paused.pop(block, None)


def require_unattached(
    model: Any, name: str, value: object, *, unless_paused: bool = False
) -> None:
    """Check that no engine runs on a model that is to be changed.

    Args:
        model: The model.
        name: Name of the parameter that asks for the change.
        value: Its value.
        unless_paused: Whether an engine that is paused allows the change.

    Raises:
        InvalidRequestError: An engine runs on it.
    """
    if _is_attached(model, unless_paused):
        gc.collect()  # an engine that was closed may wait to be collected
    if _is_attached(model, unless_paused):
        allowed = "an engine runs on this model and would go on with the old weights; "
        pause = ", or `pause` its manager" if unless_paused else ""
        raise InvalidRequestError(name, value, f"{allowed}close the engine first{pause}")


def _is_attached(model: Any, unless_paused: bool) -> bool:
    with _lock:
        engines = set(_engines.get(model, ()))
    if unless_paused:
        engines -= {engine() for engine in list(_paused.values())}
    return bool(engines)
