"""Run the engine step by step: requests in, events out.

A step is one step of the shared batch, then one turn of the side lane. The engine never touches
an event loop, a thread or the wall clock, so a test can drive it step by step. A request that fails
is told its error and forgotten; the others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.engine.metrics import EngineMetrics

if TYPE_CHECKING:
    from asyncgen.engine.batch.batch import Batch
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.lane.lane import SideLane
    from asyncgen.engine.requests.admission import Admission
    from asyncgen.engine.requests.request import Request


_MOST_IDLE_STEPS = 3
"""Steps without a row after which no row will run, as no block is about to become free."""


class Engine:
    """All requests, in the batch and in the side lane, from their arrival to their end.

    Attributes:
        metrics: Recorder of requests and steps.
    """

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
            lane: Serves requests that cannot share the batch.
            batch: ``None`` for a model that computes no packed rows.
            pool: Blocks that both plan with, for the metrics.
            admission: Learns when memory keeps requests waiting.
            metrics: Records requests and steps.
        """
        self._lane = lane
        self._batch = batch
        self._pool = pool
        self._admission = admission
        self.metrics = metrics or EngineMetrics()
        self._num_idle = 0
        self._holds_back = False

    @property
    def has_work(self) -> bool:
        """True if :meth:`step` has anything to do."""
        batch = self._batch
        return bool(self._lane.requests or (batch is not None and batch.requests))

    def warm(self, *, records: bool = True) -> None:
        """Do in advance what would make the first steps slow; on the thread that computes.

        Args:
            records: Whether decode steps are recorded in advance, where they are recorded at all.
        """
        if self._batch is not None:
            self._batch.warm()
        if records:
            self.record_steps()

    def record_steps(self) -> None:
        """Record decode steps in advance, where they are recorded at all; on any thread."""
        if self._batch is not None:
            self._batch.record_steps()

    def settle(self) -> None:
        """Wait until the device has computed what was begun."""
        if self._batch is not None:
            self._batch.settle()

    def forget_weights(self) -> None:
        """Go on with weights that were changed: nothing computed before is shared from now on."""
        if self._batch is not None:
            self._batch.forget_weights()

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
        """Free the blocks that a finished sequence kept; an unknown one is fine."""
        if self._batch is not None:
            self._batch.evict(request_id)
        self._count()

    def step(self) -> None:
        """Advance the batch by one step, and one request of the side lane by one turn.

        Raises:
            RuntimeError: Requests wait, nothing runs, and the scheduler schedules none of them.
        """
        batch, lane, num_tokens = self._batch, self._lane, 0
        if batch is not None:
            if lane.requests or self._holds_back:
                # Newcomers do not overtake a request of the lane that waits for memory.
                num_blocks, client = lane.pages_wanted
                batch.scheduler.hold_back(num_blocks, client)
                self._holds_back = num_blocks > 0
            if batch.requests:
                for row in batch.step():
                    num_tokens += row.count
        if num_tokens:
            self.metrics.step_tokens.observe(num_tokens)
        moved = bool(num_tokens)
        if lane.requests:
            moved = lane.step() or moved
        self._num_idle = 0 if moved or not self.has_work else self._num_idle + 1
        if self._num_idle > _MOST_IDLE_STEPS:
            raise RuntimeError(
                "requests wait and the scheduler schedules none of them, though nothing runs; "
                "look at `schedule_batch` of the `scheduler` that was passed"
            )
        self._count()
        if self._admission is not None:
            self._admission.is_blocked = self.metrics.requests_waiting > 0

    def _count(self) -> None:
        """Record the requests and blocks of now."""
        batch, lane, pool, metrics = self._batch, self._lane, self._pool, self.metrics
        running, present = 0, len(lane.requests)
        if present:
            running = lane.num_running
        if batch is not None:
            running += len(batch.running)
            present += len(batch.requests)
            metrics.preemptions = batch.scheduler.num_preemptions
        metrics.requests_running, metrics.requests_waiting = running, present - running
        if pool is not None:
            metrics.pages_used, metrics.pages_total = pool.occupied
