"""Turn errors of a request's own code into failures of that request alone.

Code of a request may raise anything: a processor ``SystemExit``, a tokenizer written in Rust a
panic, which is a ``BaseException``. On the threads of the engine these end the request, and its
reader gets an ``Exception``. Raised unchanged, they would end the thread that all requests share,
or reach an event loop as a cancellation or an interrupt.

Event loops and threads of users do not use this: there a cancelled task, Ctrl-C and
``GeneratorExit`` keep their meaning.
"""

from __future__ import annotations

import threading
from typing import cast

from asyncgen.errors import class_name
from asyncgen.runtime.user_code import run_user_code


def request_failure(error: BaseException) -> Exception:
    """Turn an error of a request's code into the error for its reader.

    Args:
        error: The error that was caught.

    Returns:
        The same, if it is an ``Exception`` that a reader can be raised; else, and for the end of
        an iteration, a ``RuntimeError`` that names it, with the original chained.

    Raises:
        BaseException: Ctrl-C or ``SystemExit`` on the main thread, since they are meant for the
            process. An engine on its caller's thread meets them in the middle of any request.
    """
    kind = type(error)  # `isinstance` asks an error for its `__class__`, which may raise
    is_end = issubclass(kind, StopIteration | StopAsyncIteration)
    if issubclass(kind, Exception) and not is_end:
        return cast("Exception", error)
    is_users = threading.current_thread() is threading.main_thread()
    if is_users and issubclass(kind, KeyboardInterrupt | SystemExit):
        raise error
    failure = RuntimeError(f"code of the request raised {describe(error)}; only this request ends")
    failure.__cause__ = error
    return failure


def describe(error: BaseException | None) -> str:
    """Return the name and the message of an exception, whose ``__str__`` may raise."""
    name = class_name(error)
    try:
        text = run_user_code(str, error)
        return f"{name}: {text}" if text else name
    except BaseException:
        return name
