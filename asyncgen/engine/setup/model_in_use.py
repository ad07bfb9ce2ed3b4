"""Track the engines that run on a model, and refuse to change its weights meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from asyncgen.engine.core import Engine


_lock = threading.Lock()
_engines: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Engine]] = weakref.WeakKeyDictionary()


def attach(model: Any, engine: Engine) -> None:
    """Note that an engine runs on a model, for as long as the engine exists."""
    with _lock:
        _engines.setdefault(model, weakref.WeakSet()).add(engine)


def require_unattached(model: Any, name: str, value: object) -> None:
    """Check that no engine runs on a model that is to be changed.

    Args:
        model: The model.
        name: Name of the parameter that asks for the change.
        value: Its value.

    Raises:
        InvalidRequestError: An engine runs on it.
    """
    if _is_attached(model):
        gc.collect()  # an engine that was closed may wait to be collected
    if _is_attached(model):
        allowed = "an engine runs on this model and would go on with the old weights; "
        raise InvalidRequestError(name, value, f"{allowed}close the engine first")


def _is_attached(model: Any) -> bool:
    with _lock:
        return bool(len(_engines.get(model, ())))
