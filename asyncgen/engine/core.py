"""The engine without its thread: commands in, events out, one turn at a time.

It never touches an event loop, a thread or the wall clock, so a test can drive it step by step.
A request that fails is told why and forgotten; the others do not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from asyncgen.engine.scheduler import TurnScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.request import Request

__all__ = ["Engine", "Run"]


class Run(Protocol):
    """A request in progress (see :mod:`asyncgen.engine.runner`)."""

    def turn(self) -> bool:
        """Advance by one step; ``False`` when the request has ended."""

    def end(self, reason: str) -> None:
        """End now, keeping what was generated; ``reason`` is the finish reason."""


class Engine:
    """Requests, their turns and their ends."""

    def __init__(self, start: Callable[[Request], Run], *, max_running: int) -> None:
        """Start without requests.

        Args:
            start: Lays out a request for decoding (the runner's constructor).
            max_running: Most requests that run at a time.
        """
        self._start = start
        self._scheduler: TurnScheduler[Request] = TurnScheduler(max_running)
        self._runs: dict[Request, Run] = {}

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do."""
        return len(self._scheduler) > 0

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return self._scheduler.num_waiting

    @property
    def num_running(self) -> int:
        """Requests that take turns."""
        return self._scheduler.num_running

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._scheduler.add(request, request.params.priority)

    def abort(self, request: Request, reason: str = "cancelled") -> None:
        """End a request wherever it is; one that has ended already is fine."""
        if self._scheduler.remove(request):
            self._end(request, reason)

    def abort_all(self, reason: str) -> None:
        """End every request."""
        for request in self._scheduler.clear():
            self._end(request, reason)

    def fail_all(self, error: BaseException) -> None:
        """Tell every request that the engine is dead."""
        self._runs.clear()
        for request in self._scheduler.clear():
            request.sink.put_nowait(error)

    def step(self) -> None:
        """Give one request one turn."""
        self._scheduler.admit()
        request = self._scheduler.next_turn()
        if request is None:
            return
        try:
            goes_on = self._run_of(request).turn()
        except Exception as error:
            # This request's own failure: a processor that raised, a row of NaN.
            request.sink.put_nowait(error)
            goes_on = False
        if not goes_on:
            self._runs.pop(request, None)
            self._scheduler.remove(request)

    def _end(self, request: Request, reason: str) -> None:
        """Tell a request that is forgotten already why it ended."""
        try:
            self._run_of(request).end(reason)
        except Exception as error:
            # A tokenizer that raised on the rest of the text.
            request.sink.put_nowait(error)
        self._runs.pop(request, None)

    def _run_of(self, request: Request) -> Run:
        """The run of a request, made at its first turn."""
        run = self._runs.get(request)
        if run is None:
            run = self._runs[request] = self._start(request)
        return run
