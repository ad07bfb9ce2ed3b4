"""Run code of a user on a thread that computes for many, which gets back the state that it had.

Such code may leave a mode of torch entered, or a setting changed: what it leaves behind is put back
when it returns. A generator gets its own state again when it goes on. On threads of users nothing
is done: there what their code leaves behind is theirs. A tracer, a profiler, a limit of recursion,
a direction of rounding and a level of ``vmap`` end with the call, and a generator does not get them
again.

Its random numbers are its request's own, drawn from the request's seed (see `user_draws`).

Settings of the process (the default dtype, the precision of products) are put back as well, to what
they were before the call, or before the calls that overlap. A call cannot tell its own changes from
those that the application makes on another thread meanwhile, and these are put back, too. What the
engine does not depend on (the event loop of the thread, filters of warnings, ``sys.stdout``,
signals, the locale) belongs to the application, and stays as it was left. So do settings of the
process that a destructor (``__del__``) changes, as Python runs it outside of any call; what it
changes of the thread ends with the turn, or with the collection of cycles that runs it.
"""

from __future__ import annotations

import contextvars
import gc
import importlib
import inspect
import secrets
import sys
import threading
from abc import ABCMeta
from contextlib import contextmanager
from enum import EnumMeta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from asyncgen.errors import class_module, render_by
from asyncgen.runtime.forked import call_in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from asyncgen.runtime.thread_state import Changes, State


P = ParamSpec("P")
T = TypeVar("T")

OURS = ("asyncgen.", "streamers.")
"""Where the classes and functions of this library are."""

_METACLASSES = (type, ABCMeta, EnumMeta)

_TURNS = 2
"""A turn may drop the objects of a request, and end a mode by that, behind its last call."""

_running: dict[SharedThread, tuple[State, int]] = {}
"""State and limit of recursion to be put back of each call that runs; `_lock` guards its keys."""

_lock = threading.Lock()

_here = threading.local()
"""The `SharedThread` that this thread is, as ``thread``; elsewhere nothing."""


class UserDraws:
    """Random numbers of the code that a user passed with one request.

    Attributes:
        seed: Seeds a generator at its first use.
        generators: Generators of torch by device, as far as they are used.
    """

    __slots__ = ("generators", "seed")

    def __init__(self, seed: int) -> None:
        """Begin before the first number."""
        self.seed = seed
        self.generators: dict[Any, Any] = {}


class SharedThread:
    """A thread that computes for many requests.

    Attributes:
        is_user: Whether code of a user runs just now.
        turns: Turns after which its state has to be looked at; 0 while no code of a user ran.
        draws: Those of the request that it computes for; of its own where it is none's turn.
        active: Those of the code of a user that runs just now.
        mode: Redirects what such code draws; ``None`` before there was any.
        collecting: State of torch in front of the collection of cycles that runs on it.
    """

    def __init__(self) -> None:
        """Begin without code of users."""
        self.is_user = False
        self.turns = 0
        self.draws = UserDraws(secrets.randbits(64))
        self.active: UserDraws | None = None
        self.mode: Any = None
        self.collecting: State | None = None

    def settle(self) -> None:
        """Put back at the end of a turn what was changed beside a call, as a destructor may."""
        self.turns -= 1
        _thread_state().restore_thread()


def share_thread() -> SharedThread:
    """Note that this thread computes for many requests, until it ends."""
    thread = _here.thread = SharedThread()
    if _around_collection not in gc.callbacks:
        gc.callbacks.append(_around_collection)
    return thread


def _around_collection(phase: str, _: dict[str, int]) -> None:
    """Put back what destructors change of this thread, which run in the midst of a step."""
    thread: SharedThread | None = getattr(_here, "thread", None)
    if thread is None or thread.is_user or _state is None:
        return
    if phase == "start":
        thread.collecting = _state.read_thread()
    elif thread.collecting is not None:
        before, thread.collecting = thread.collecting, None
        _state.restore_thread(before)


def is_of_user(thing: object) -> bool:
    """Tell whether the class of an object is not one of this library.

    A class with a metaclass of a user is one of theirs, whatever module it says it is from.
    """
    return type(type(thing)) not in _METACLASSES or not class_module(thing).startswith(OURS)


def run_user_code(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a user; what it leaves behind on a shared thread is put back.

    Code that it calls in turn is part of the call.

    Raises:
        BaseException: The function raised it.
    """
    thread = _guarding()
    if thread is None:
        return function(*args, **kwargs)
    context, call = contextvars.copy_context(), partial(function, *args, **kwargs)
    return _guarded(thread, context, [], thread.draws, call)


@contextmanager
def drawing_from(draws: UserDraws | None) -> Iterator[None]:
    """Let the code of users that runs in this block draw from these; ``None`` changes nothing."""
    thread: SharedThread | None = getattr(_here, "thread", None)
    if thread is None or draws is None:
        yield
        return
    before, thread.draws = thread.draws, draws
    try:
        yield
    finally:
        thread.draws = before


def active_draws() -> UserDraws | None:
    """Return the draws of the code of a user that runs on this thread, if any does."""
    thread: SharedThread | None = getattr(_here, "thread", None)
    return None if thread is None else thread.active


def guard_methods(thing: object) -> None:
    """Let the public methods of an object that a user wrote put back what they leave behind.

    Args:
        thing: Belongs to the library; those of its methods that a class of a user overrides, and
            that this class adds, are replaced in it.
    """
    kind = type(thing)
    for name in dir(kind):
        method = getattr(kind, name)
        is_theirs = inspect.isfunction(method) and not method.__module__.startswith(OURS)
        if is_theirs and not name.startswith("_"):
            setattr(thing, name, partial(run_user_code, getattr(thing, name)))


class UserGenerator(Generic[T]):
    """A generator of a user, which finds its own state again whenever it goes on."""

    def __init__(
        self, generator: Generator[Any, None, T], read: Callable[[Any], Any] = lambda value: value
    ) -> None:
        """Keep a generator that was not begun.

        Args:
            generator: The generator.
            read: Reads what it yields, which may run code of the user as well.
        """
        self._generator = generator
        self._read = read
        self._own: Changes = []
        self._context = contextvars.copy_context()
        thread: SharedThread | None = getattr(_here, "thread", None)
        self._draws = None if thread is None else thread.draws

    def __next__(self) -> Any:
        """Run it to its next value.

        Raises:
            StopIteration: It has returned; ``value`` is its result.
        """
        return self._run(lambda: self._read(next(self._generator)))

    def close(self) -> None:
        """End it where it is."""
        self._run(self._generator.close)

    def _run(self, function: Callable[[], Any]) -> Any:
        thread = _guarding()
        if thread is None:
            return function()
        return _guarded(thread, self._context, self._own, self._draws or thread.draws, function)


def _guarding() -> SharedThread | None:
    """Return the thread whose state has to be put back; ``None`` where nothing is to be done."""
    thread: SharedThread | None = getattr(_here, "thread", None)
    if thread is None or thread.is_user or "torch" not in sys.modules:
        return None
    return thread


def _guarded(
    thread: SharedThread,
    context: contextvars.Context,
    own: Changes,
    draws: UserDraws,
    function: Callable[[], T],
) -> T:
    """Call a function with changes of its own, which are replaced by those that it leaves."""
    state, random = _thread_state(), _user_draws()
    if thread.mode is None:
        thread.mode = random.DrawingMode(draws)
    mode = thread.mode
    mode.draws = draws
    before, wanted, limit = _begin(thread, state)
    profiler, tracer = sys.getprofile(), sys.gettrace()
    thread.is_user, thread.turns = True, _TURNS
    try:
        state.write_changes(own)
        random.enter(mode)
        thread.active = draws
        return context.run(call_in_process, function)
    finally:
        thread.active = None
        try:
            # First what could raise in the lines below.
            try:
                sys.setprofile(profiler)
            except BaseException:  # raised by a profiler of the user's, which is off by that
                sys.setprofile(profiler)
            sys.settrace(tracer)
            if sys.getrecursionlimit() != limit:
                sys.setrecursionlimit(limit)
            random.leave(mode)
            found = state.read_state()
            if own or found != before:
                own[:] = state.changes(found, before)
                state.put_back(before, found, wanted)
        finally:
            with _lock:
                del _running[thread]
            thread.is_user = False


def _begin(thread: SharedThread, state: Any) -> tuple[State, State, int]:
    """Note that a call begins; return the state before it, and state and limit to be put back.

    What the settings of the process are while another call runs may be of that call, and is not
    what they are to be behind both.
    """
    with _lock:
        before = wanted = state.read_state()
        limit = sys.getrecursionlimit()
        for other, limit_before_both in _running.values():
            wanted, limit = state.with_settings(before, other), limit_before_both
            break
        _running[thread] = wanted, limit
    return before, wanted, limit


def _thread_state() -> Any:
    """Return the module that knows the state, which brings torch."""
    global _state
    if _state is None:
        _state = importlib.import_module("asyncgen.runtime.thread_state")
    return _state


def _user_draws() -> Any:
    """Return the module that redirects draws; at its first use it meets torch's functions."""
    global _random
    if _random is None:
        module = importlib.import_module("asyncgen.runtime.user_draws")
        with _lock:
            if _random is None:
                module.redirect_functions(active_draws)
                _random = module
    return _random


_state: Any = None
_random: Any = None

render_by(lambda value: run_user_code(repr, value))
