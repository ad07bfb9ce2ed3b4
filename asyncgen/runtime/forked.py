"""End a process that code of a user forked from a thread of an engine, and returned in.

The child has a copy of the thread, of its requests and of all they write to. Were it to go on, it
would compute what its parent computes, and never end.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


def call_in_process(function: Callable[[], T]) -> T:
    """Call a function; where it returns or raises in a forked child, the child ends.

    It ends with the code of ``SystemExit``, as it would have on a main thread, or with 1 behind
    the trace of another error. Nothing registered with ``atexit`` runs, as that is the parent's.
    """
    pid = os.getpid()
    try:
        result = function()
    except BaseException as error:
        if os.getpid() != pid:
            _end(error)
        raise
    if os.getpid() != pid:
        _end(None)
    return result


def _end(error: BaseException | None) -> NoReturn:
    code = 0
    with suppress(BaseException):
        code = _code_of(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _code_of(error: BaseException | None) -> int:
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        return 1
    if isinstance(error.code, int):
        return error.code & 0xFF
    if error.code is not None:
        sys.stderr.write(f"{error.code}\n")
    return 0 if error.code is None else 1
