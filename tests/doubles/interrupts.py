"""Ctrl-C at every place of a call at which the interpreter looks for it, one after the other.

The interpreter looks for signals at a few kinds of instruction only: behind a call of C, at the
start of a function and at the end of a round of a loop. A tracer that raises elsewhere finds faults
that do not exist. So this one lets the signal arrive before a chosen instruction, by code of C that
the interpreter calls as its tracer, and leaves it to the interpreter where it raises.
"""

from __future__ import annotations

import _thread
import dis
import signal
import sys
import threading
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

_BEFORE = ("CALL", "JUMP_BACKWARD", "RETURN_", "YIELD_", "SEND", "FOR_ITER", "BEFORE_WITH")
"""Beginnings of the instructions before which a signal makes a difference."""

_ignore = partial(sys.audit, "asyncgen.tests.ignored")
"""As a tracer, it does nothing and returns None; it is of C."""


def _strike(frame: FrameType) -> Callable[..., Any]:
    """Return a tracer of C that is Ctrl-C once, and is followed by one that ignores all."""
    interrupt = map(_thread.interrupt_main, [signal.SIGINT])
    follow = map(setattr, [frame], ["f_trace"], [_ignore])
    both = partial(next, zip(interrupt, follow, strict=False), None)
    return partial(print, file=SimpleNamespace(write=len, flush=both), flush=True)


@cache
def _followed(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions in front of one of those."""
    found, last = [], 0
    for each in dis.get_instructions(code):
        if each.opname.startswith(_BEFORE):
            found.append(last)
        last = each.offset
    return frozenset(found)


class Interrupter:
    """Interrupts a block of the main thread at its n-th place.

    Attributes:
        num_places: Places that were passed.
        where: File, line and function that were interrupted, if any.
    """

    def __init__(
        self, place: int, error: type[BaseException] = KeyboardInterrupt, *, in_loop: bool = False
    ) -> None:
        """Args:
        place: The place, from 1; 0 for none, to count them.
        error: What is raised there.
        in_loop: Whether the block is one of a task, whose loop handles the signal.
        """
        self.num_places = 0
        self.where: str | None = None
        self._place, self._error, self._in_loop = place, error, in_loop
        self._strike: Callable[..., Any] | None = None

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Interrupt in the functions that the block calls, or behind them."""
        assert threading.current_thread() is threading.main_thread()
        handler, tracer = signal.getsignal(signal.SIGINT), sys.gettrace()
        if tracer is _ignore:  # of one that was struck at the end of this
            tracer = None  # else it would strike behind the block, too
        if not self._in_loop:
            signal.signal(signal.SIGINT, self._raise)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(tracer)
            if not self._in_loop:
                signal.signal(signal.SIGINT, handler)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._pass

    def _pass(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti in _followed(frame.f_code):
            self.num_places += 1
            if self.num_places == self._place:
                sys.settrace(_ignore)
                outer = frame.f_back
                while outer is not None:
                    outer.f_trace = None
                    outer = outer.f_back
                # The interpreter borrows the tracer that it calls, and this one replaces itself.
                self._strike = _strike(frame)
                return self._strike
        return self._pass

    def _raise(self, number: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        if self.where is None and frame is not None:
            code = frame.f_code
            self.where = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
            raise self._error
