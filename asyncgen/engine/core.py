"""The engine without its thread: commands in, events out, one step at a time.

A step is one step of the shared batch, then one turn of the side lane. The engine never touches
an event loop, a thread or the wall clock, so a test can drive it step by step. A request that fails
is told why and forgotten; the others do not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.engine.metrics import EngineMetrics

if TYPE_CHECKING:
    from asyncgen.engine.batch import Batch
    from asyncgen.engine.lane.lane import SideLane
    from asyncgen.engine.requests.admission import Admission
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.scheduling.pages import PagePool

__all__ = ["Engine"]

_IDLE_STEPS = 3
"""So many steps in which nobody could run, and there is nobody to wait for."""


class Engine:
    """All requests, in the batch and beside it, from their arrival to their end."""

    def __init__(
        self,
        lane: SideLane,
        batch: Batch | None = None,
        *,
        pool: PagePool | None = None,
        admission: Admission | None = None,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Start without requests.

        Args:
            lane: Serves what the batch cannot.
            batch: ``None`` for a model that computes no packed rows.
            pool: The memory that both plan with, for the figures.
            admission: Is told when memory keeps requests waiting.
            metrics: Hears of requests and steps.
        """
        self._lane = lane
        self._batch = batch
        self._pool = pool
        self._admission = admission
        self._metrics = metrics or EngineMetrics()
        self._idle = 0

    @property
    def metrics(self) -> EngineMetrics:
        """What was counted."""
        return self._metrics

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do."""
        batch = self._batch
        return self._lane.has_work or (batch is not None and batch.has_work)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        in_batch = 0 if self._batch is None else self._batch.num_waiting
        return self._lane.num_waiting + in_batch

    @property
    def num_running(self) -> int:
        """Requests that have, and have not ended."""
        return self._lane.num_running + (0 if self._batch is None else self._batch.num_started)

    def warm(self) -> None:
        """Do what would make the first steps slow; on the thread that will compute."""
        if self._batch is not None:
            self._batch.warm()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._metrics.request_queued(request)
        if self._batch is None or request.alone is not None:
            self._lane.add(request)
        else:
            self._batch.add(request)
        self._count()

    def abort(self, request: Request, reason: str = "cancelled") -> None:
        """End a request wherever it is; one that has ended already is fine."""
        if self._batch is None or not self._batch.abort(request, reason):
            self._lane.abort(request, reason)
        self._count()

    def abort_all(self, reason: str) -> None:
        """End every request."""
        if self._batch is not None:
            self._batch.abort_all(reason)
        self._lane.abort_all(reason)
        self._count()

    def fail_all(self, error: BaseException) -> None:
        """Tell every request that the engine is dead."""
        if self._batch is not None:
            self._batch.fail_all(error)
        self._lane.fail_all(error)

    def evict(self, request_id: str) -> None:
        """Give back the pages that a finished sample was left; an unknown one is fine."""
        if self._batch is not None:
            self._batch.evict(request_id)
        self._count()

    def step(self) -> None:
        """Advance the batch by one step, and one request of the side lane by one turn.

        Raises:
            RuntimeError: Requests wait, nothing runs, and the scheduler schedules none of them.
        """
        batch = self._batch
        if batch is not None:
            # Who waits for memory beside the batch is not to be overtaken for ever by newcomers.
            batch.hold_back(self._lane.num_pages_wanted)
        rows = batch.step() if batch is not None and batch.has_work else ()
        moved = bool(rows)
        if self._lane.has_work:
            moved = self._lane.step() or moved
        self._idle = 0 if moved or not self.has_work else self._idle + 1
        if self._idle > _IDLE_STEPS:
            raise RuntimeError(
                "requests wait and the scheduler schedules none of them, though nothing runs; "
                "look at `schedule_batch` of the `scheduler` that was passed"
            )
        self._count(sum([row.count for row in rows]) or None)
        if self._admission is not None:
            self._admission.is_blocked = self.num_waiting > 0

    def _count(self, num_tokens: int | None = None) -> None:
        """Tell the figures of now, and the tokens of a step."""
        pool = self._pool
        used = 0 if pool is None else pool.num_used + pool.num_reserved
        total = 0 if pool is None else pool.num_pages
        self._metrics.step(self.num_running, self.num_waiting, used, total, num_tokens)
