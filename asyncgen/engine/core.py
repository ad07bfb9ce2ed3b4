"""The engine without its thread: commands in, events out, one step at a time.

A step is one step of the shared batch, then one turn of the side lane. The engine never touches
an event loop, a thread or the wall clock, so a test can drive it step by step. A request that fails
is told why and forgotten; the others do not notice.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from asyncgen.engine.metrics import EngineMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.batch.batch import Batch
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.lane.lane import SideLane
    from asyncgen.engine.requests.admission import Admission
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.scheduling.state import ScheduledRow


_MOST_IDLE_STEPS = 3
"""After so many steps without a row, though no memory has to come free first, none will run."""

_num_tokens = attrgetter("count")


class Engine:
    """All requests, in the batch and beside it, from their arrival to their end."""

    def __init__(
        self,
        lane: SideLane,
        batch: Batch | None = None,
        *,
        pool: BlockPool | None = None,
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
        self._holds_back = 0

    @property
    def metrics(self) -> EngineMetrics:
        """What was counted."""
        return self._metrics

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has anything to do."""
        batch = self._batch
        return bool(self._lane.requests or (batch is not None and batch.requests))

    def warm(self) -> None:
        """Do what would make the first steps slow; on the thread that will compute."""
        if self._batch is not None:
            self._batch.warm()

    def add(self, request: Request) -> None:
        """Queue a request."""
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
        batch, lane = self._batch, self._lane
        rows: Sequence[ScheduledRow] = ()
        if batch is not None:
            if lane.requests or self._holds_back:
                # Newcomers do not overtake a request of the lane that waits for memory.
                self._holds_back, client = lane.pages_wanted
                batch.hold_back(self._holds_back, client)
            if batch.requests:
                rows = batch.step()
        moved = bool(rows)
        if lane.requests:
            moved = lane.step() or moved
        self._idle = 0 if moved or not self.has_work else self._idle + 1
        if self._idle > _MOST_IDLE_STEPS:
            raise RuntimeError(
                "requests wait and the scheduler schedules none of them, though nothing runs; "
                "look at `schedule_batch` of the `scheduler` that was passed"
            )
        num_waiting = self._count(sum(map(_num_tokens, rows)) if rows else None)
        if self._admission is not None:
            self._admission.is_blocked = num_waiting > 0

    def _count(self, num_tokens: int | None = None) -> int:
        """Tell the figures of now, and the tokens of a step; return how many requests wait."""
        batch, lane, pool = self._batch, self._lane, self._pool
        running, present, preemptions = 0, len(lane.requests), 0
        if present:
            running = lane.num_running
        if batch is not None:
            running += batch.num_running
            present += len(batch.requests)
            preemptions = batch.num_preemptions
        waiting = present - running
        used, total = (0, 0) if pool is None else pool.occupied
        self._metrics.step(running, waiting, used, total, num_tokens, preemptions)
        return waiting
