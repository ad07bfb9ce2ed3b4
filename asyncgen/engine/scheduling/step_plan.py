"""What a step computes, put together row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.state_snapshots import slot_to_write, stop_at_snapshot
from asyncgen.engine.scheduling.state import RequestStatus, ScheduledRow

if TYPE_CHECKING:
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.state import RequestState

_DECODING = RequestStatus.DECODING


@dataclass(slots=True)
class StepPlan:
    """What a step computes.

    Attributes:
        pool: Pages and slots of the rows.
        tokens: Tokens that may still run.
        entries: Cache entries (positions, summed over rows) that may still be read.
        passes_decoding: Whether requests that decode sit this step out.
        prompts: Prompt tokens that each client may have of these, at first; ``None``: any number.
        is_open: Whether waiting requests may still start.
        rows: Those that run, each request at most once.
        passed: Prompts whose clients got none of the tokens; they come again behind all others.
    """

    pool: BlockPool
    tokens: int
    entries: int
    passes_decoding: bool
    prompts: dict[str, int] | None
    is_open: bool = True
    rows: list[ScheduledRow] = field(default_factory=list)
    passed: list[RequestState] = field(default_factory=list)

    def row(self, state: RequestState) -> ScheduledRow | None:
        """As many of the next tokens of a running request as fit; ``None`` if none does."""
        if self.passes_decoding and state.status is _DECODING:
            return None
        start, total = state.num_computed, len(state.tokens)
        count = total - start
        if count > 1 and not state.is_whole:
            count = min(count, self.tokens, state.prefill_chunk_size or count)
        elif self.rows and (count > self.tokens or count > self.entries):
            return None  # alone in a step it may have more
        prompts = self.prompts
        if prompts is not None and state.status is not _DECODING and state not in self.passed:
            if (allowed := prompts.get(state.client, count)) <= 0:
                self.passed.append(state)
                return None
            count = count if state.is_whole else min(count, allowed)
        if start + count > self.entries and self.rows:
            self.is_open = False
            count = self.entries - start
        if count <= 0:
            return None
        if count > 1 and state.status is not _DECODING:
            count = stop_at_snapshot(self.pool, state, start + count) - start
        return ScheduledRow(state, start, count, state.pages, start + count == total, state.more)

    def add(self, row: ScheduledRow, step: int) -> None:
        """Let a row run for which there are pages.

        Args:
            row: The row; the status of a request that does not decode is set.
            step: Number of the step.
        """
        state = row.state
        if state.status is not _DECODING:
            state.status = (
                RequestStatus.PREFILLING if row.is_last else RequestStatus.PREFILLING_SPLIT
            )
            state.last_chunk = step
            if self.prompts is not None and state.client in self.prompts:
                self.prompts[state.client] -= row.count
        if self.pool.slots is not None:
            row.source, row.target = state.slot, slot_to_write(self.pool.slots, state)
        self.rows.append(row)
        self.tokens -= row.count
        self.entries -= row.start + row.count

    def drop_preempted(self) -> None:
        """Take out the rows of requests that have given their pages to others since."""
        self.rows = [row for row in self.rows if row.state.status is not RequestStatus.PENDING]

    def lengthen(self) -> None:
        """Give prompts what their clients and others have left of the step's tokens."""
        for row in self.rows:
            state = row.state
            if row.is_last or not state.pages:
                continue
            total = len(state.tokens)
            limit = (state.prefill_chunk_size or total) - row.count
            left = min(total, state.room) - row.start - row.count
            room, end = min(self.tokens, self.entries, limit, left), row.start + row.count
            if room > 0:
                room = stop_at_snapshot(self.pool, state, end + room) - end
            if room > 0:
                row.count += room
                self.tokens -= room
                self.entries -= room
                row.is_last = row.start + row.count == total
                if row.is_last:
                    state.status = RequestStatus.PREFILLING
