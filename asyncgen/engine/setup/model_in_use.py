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
_paused: weakref.WeakKeyDictionary[Engine, int] = weakref.WeakKeyDictionary()
"""Engines that are held between two steps, and by how many blocks."""


def attach(model: Any, engine: Engine) -> None:
    """Note that an engine runs on a model, for as long as the engine exists."""
    with _lock:
        _engines.setdefault(model, weakref.WeakSet()).add(engine)


@contextmanager
def weights_open(engine: Engine) -> Iterator[None]:
    """Let weights be written to while an engine is held between two steps."""
    with _lock:
        _paused[engine] = _paused.get(engine, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _paused[engine] -= 1


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
        engines = list(_engines.get(model, ()))
        return any(not (unless_paused and _paused.get(engine)) for engine in engines)
