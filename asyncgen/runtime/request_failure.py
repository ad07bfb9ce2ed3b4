"""Keeps the end of one request from being the end of its thread.

What a request brings with it may raise anything: a processor ``SystemExit``, a tokenizer written in
Rust a panic, which is a ``BaseException``. On the threads of the engine these end the request, and
are told to its reader as an ``Exception``: raised as they are, they would end the thread that all
share, or reach an event loop as a cancellation or an interrupt that nobody has asked for.

Event loops and the threads of users do not come here: there a cancelled task, Ctrl-C and
``GeneratorExit`` mean what they say.
"""

from __future__ import annotations

import threading


def request_failure(error: BaseException) -> Exception:
    """Turn what a request's own code raised into what its reader is raised.

    Args:
        error: As it was caught.

    Returns:
        The same, if it is an ``Exception``; else a ``RuntimeError`` that names it, the original
        chained.

    Raises:
        BaseException: Ctrl-C or ``SystemExit``, on the main thread: it is the process that is
            meant. Where an engine runs on the thread of its caller, they come in the midst of
            any request.
    """
    if isinstance(error, Exception):
        return error
    is_users = threading.current_thread() is threading.main_thread()
    if is_users and isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    failure = RuntimeError(f"code of the request raised {describe(error)}; only this request ends")
    failure.__cause__ = error
    return failure


def describe(error: BaseException | None) -> str:
    """Name an exception and its message, which may be one that raises in turn."""
    name = type(error).__name__
    try:
        text = str(error)
        return f"{name}: {text}" if text else name
    except BaseException:
        return name
