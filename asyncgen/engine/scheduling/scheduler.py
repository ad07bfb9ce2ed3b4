"""Choose the rows of the next step and give them blocks. Plain Python: no torch, clock or thread.

``Scheduler`` does everything but choose an order: it admits waiting requests, finds their beginning
in the prefix cache, allocates blocks, preempts the youngest request when blocks run out, and keeps
to the budgets. A subclass puts the candidates in order (``schedule_batch``) and leaves the rest to
``schedule``: first in first out and prefill first are below.

The life of a request here::

    add_waiting_request -> waiting -> admitted: running, with blocks -> finish_request
                              ^-------------- preempt -----'

For each step, the owner calls ``clear_cancelled_requests``, ``schedule_batch``, the model,
``computed``; then it appends the sampled tokens to ``state.tokens`` and ends the requests that are
done. All of it happens on one thread.

Clients share seats, blocks and prompt tokens evenly (`client_shares`). No decoding row is skipped
for that: a client below its share gets the seat of a row of the client furthest above its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_hashes import extend_block_hashes
from asyncgen.engine.kv_cache.block_pool import blocks_in, max_blocks
from asyncgen.engine.kv_cache.block_tables import (
    allocate,
    blocks_to_start,
    extend,
    find_cached,
    free_behind_windows,
    num_missing,
    publish_full_blocks,
    share_cached,
)
from asyncgen.engine.kv_cache.cached_sequence import NO_SLOT
from asyncgen.engine.kv_cache.state_snapshots import (
    advance_state,
    keep_snapshot,
    stop_at_snapshot,
)
from asyncgen.engine.scheduling.request_table import RequestTable
from asyncgen.engine.scheduling.state import RequestStatus, ScheduledRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.state import RequestState


_PENDING = RequestStatus.PENDING
_PREFILLING = RequestStatus.PREFILLING
_DECODING = RequestStatus.DECODING


class Scheduler(RequestTable, ABC):
    """Waiting and running requests, their blocks and their order.

    A subclass overrides ``schedule_batch``, and ``may_admit`` if it likes.
    """

    @abstractmethod
    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        """Choose the rows of the next step.

        Args:
            token_budget: Most tokens that may run.
            cache_budget: Most cache entries (positions, summed over rows) that may be read.

        Returns:
            Rows to compute, each request at most once; empty if nothing can run now. If nothing
            can while ``passes_decoding`` is set, the method is called again without.
        """

    def computed(self, rows: Sequence[ScheduledRow]) -> None:
        """Note that rows were computed; others can find their full blocks from now on.

        Args:
            rows: Rows from ``schedule_batch``. Those of requests that left since are ignored.
        """
        pool = self.cache
        for row in rows:
            state = row.state
            if not state.block_tables:
                continue
            if pool.slots is not None:
                advance_state(pool.slots, state, row.target)
            state.num_computed = end = row.start + row.count
            if end >= (state.num_published + 1) * pool.page_size:
                published = publish_full_blocks(pool, state)
                if pool.slots is not None:
                    keep_snapshot(pool, pool.slots, state)
                for block_hash in published:
                    self._prefixes.finish(state, block_hash)
            if state.status is not _DECODING:
                state.status = _DECODING if row.is_last else _PREFILLING

    def begun(self, rows: Sequence[ScheduledRow]) -> None:
        """Note that rows will have been computed by the time of the next step.

        ``schedule_batch`` may come before ``computed`` then; others find the blocks only after it.

        Args:
            rows: Rows from ``schedule_batch``.
        """
        for row in rows:
            if self.cache.slots is not None:
                advance_state(self.cache.slots, row.state, row.target)
            row.state.num_computed = row.start + row.count
            if row.state.status is not _DECODING:
                row.state.status = _DECODING if row.is_last else _PREFILLING

    # For subclasses.

    def in_turn(self) -> Iterator[RequestState]:
        """Iterate over the waiting requests, next first, for ``schedule`` alone.

        Of each client, it ends behind a request that could not be admitted, and costs nothing for
        the requests behind it, nor for any if no seat is free.
        """
        if not self._has_several_clients:
            yield from self._queue.in_turn(next(iter(self._present), ""))
        elif len(self.active_requests) < self.max_running:
            yield from self._shares.turns(self.active_requests)

    @property
    def num_spare(self) -> int:
        """Free blocks kept in reserve at admission; 0 by default."""
        return 0

    def may_admit(self, state: RequestState) -> bool:
        """Return whether a waiting request may start now, if there are blocks; True by default.

        Args:
            state: Next request.
        """
        return True

    def schedule(
        self, candidates: Iterable[RequestState], token_budget: int, cache_budget: int
    ) -> list[ScheduledRow]:
        """Make rows of candidates, in the order given, as far as budgets and blocks go.

        A running request that needs a block takes it, if none is left, from the youngest running
        request of the client that holds most beyond its share. A waiting one is admitted if there
        are blocks for all of its tokens; if not, no other one of its client is admitted in this
        step, so that small requests do not pass a large one for ever. A request whose beginning
        another one computes now waits for that. A row that does not fit waits, unless it is first.

        Args:
            candidates: Running and waiting requests, most important first. Read one by one.
            token_budget: Most tokens that may run.
            cache_budget: Most cache entries that may be read.

        Returns:
            The rows.
        """
        self._steps += 1
        if self._queue.deferred:
            self._prefixes.stop_waiting_for_idle(self._steps)
        max_running = min(self.max_running, token_budget)
        is_shared = self._has_several_clients
        allowed = self._share_out(token_budget, max_running) if is_shared else None
        preemptions = self.num_preemptions
        tokens = token_budget - (self._num_decoding() if self.passes_decoding else 0)
        step = _StepRows(tokens, cache_budget, allowed)
        may_admit = True
        for state in chain(candidates, step.passed):
            if step.tokens <= 0:
                break
            status = state.status
            if status is _PENDING:
                if not may_admit or preemptions != self.num_preemptions or step.entries <= 0:
                    continue
                if is_shared and self._shares.has_to_wait(state, allowed):
                    continue
                may_admit = self._admit(state, max_running)
                if state.status is _PENDING:
                    continue
            elif status is _DECODING and self.passes_decoding:
                continue
            count, is_cut = self._num_scheduled(step, state)
            if is_cut:
                may_admit = False
            if count <= 0:
                continue
            start, tables = state.num_computed, state.block_tables
            is_last = start + count == len(state.tokens)
            row = ScheduledRow(state, start, count, tables[0], is_last, tables[1:])
            if start + count > state.num_allocated and not self._extend(row):
                may_admit = False
                continue
            self._add(step, row)
        if preemptions != self.num_preemptions:
            step.rows = [row for row in step.rows if row.state.status is not _PENDING]
        if allowed is not None:
            self._lengthen(step)
        if is_shared:
            self._shares.end_step(step.rows, self.active_requests, max_running, self.num_spare)
        return step.rows

    def _share_out(self, token_budget: int, max_running: int) -> dict[str, int] | None:
        """Preempt for clients below their shares; return the prompt tokens of each client."""
        guest = self._shares.guest
        if guest is not None and self.held_back > self.cache.num_available:
            self._shares.short[guest] = self.held_back
        for state in self._shares.to_give_up(self.running(), self._steps):
            self.preempt(state)
        active = self.active_requests
        budget = max(token_budget - self._num_decoding(), 0)
        has_seats = len(active) < max_running
        return self._shares.prompt_tokens(active, budget, has_seats=has_seats)

    def _num_decoding(self) -> int:
        """Return the number of running requests that decode."""
        return sum(state.status is _DECODING for state in self.active_requests.values())

    def preempt(self, state: RequestState) -> None:
        """Free the blocks of a running request and put it back into the waiting queue.

        Its rank brings it to the front; blocks that stay in the prefix cache are not computed
        again.
        """
        del self.active_requests[state.request_id]
        self._free(state)
        state.status = _PENDING
        state.num_preemptions += 1
        self.num_preemptions += 1
        self._queue.push(state)

    # Rows of a step.

    def _num_scheduled(self, step: _StepRows, state: RequestState) -> tuple[int, bool]:
        """Return how many of the next tokens of a request fit, and whether entries cut them."""
        start, total = state.num_computed, len(state.tokens)
        count = total - start
        if count > 1 and not state.is_whole:
            count = min(count, step.tokens, state.prefill_chunk_size or count)
        elif step.rows and (count > step.tokens or count > step.entries):
            return 0, False  # alone in a step it may have more
        allowed, is_decoding = step.allowed, state.status is _DECODING
        if allowed is not None and not is_decoding and state not in step.passed:
            if (most := allowed.get(state.client, count)) <= 0:
                step.passed.append(state)
                return 0, False
            count = count if state.is_whole else min(count, most)
        is_cut = start + count > step.entries and bool(step.rows)
        if is_cut:
            count = step.entries - start
        if self.cache.slots is not None and count > 1 and not is_decoding and not state.is_whole:
            count = stop_at_snapshot(self.cache, self.cache.slots, state, start + count) - start
        return count, is_cut

    def _add(self, step: _StepRows, row: ScheduledRow) -> None:
        """Add a row that has its blocks to a step."""
        state, slots = row.state, self.cache.slots
        if state.status is not _DECODING:
            state.status = _PREFILLING
            state.last_chunk = self._steps
            if step.allowed is not None and state.client in step.allowed:
                step.allowed[state.client] -= row.count
        if slots is not None:
            if state.next_slot == NO_SLOT:
                state.next_slot = slots.take()
            row.source, row.target = state.slot, state.next_slot
        step.rows.append(row)
        step.tokens -= row.count
        step.entries -= row.start + row.count

    def _lengthen(self, step: _StepRows) -> None:
        """Give prompts the tokens of the step that their clients and others have left."""
        for row in step.rows:
            state = row.state
            if row.is_last or not state.block_tables:
                continue
            total, end = len(state.tokens), row.start + row.count
            limit = (state.prefill_chunk_size or total) - row.count
            left = min(total, state.num_allocated) - end
            more = min(step.tokens, step.entries, limit, left)
            if more > 0 and self.cache.slots is not None and not state.is_whole:
                more = stop_at_snapshot(self.cache, self.cache.slots, state, end + more) - end
            if more > 0:
                row.count += more
                step.tokens -= more
                step.entries -= more
                row.is_last = end + more == total

    # Blocks.

    def _admit(self, state: RequestState, max_running: int) -> bool:
        """Start a waiting request, or defer it until another one has computed its beginning.

        Returns:
            True if others may be admitted after it; its status tells whether it was admitted.
        """
        pool = self.cache
        if len(self.active_requests) >= max_running:
            return False
        if pool.slots is not None and not pool.slots.has_free_row:
            return False
        if not self.may_admit(state):
            least = max(self.num_spare, pool.num_available) + 1
            return self._has_several_clients and self._shares.is_short(state, least)
        if state in self._queue.deferred_states:
            return True
        num_tokens, size, request_id = len(state.tokens), pool.page_size, state.request_id
        while True:
            tables, num_cached = find_cached(pool, state)
            if request_id in self._kept.states:
                kept, num_kept = self._kept.find(state)
                if num_kept > num_cached:
                    tables, num_cached = kept, num_kept
            # The last token is computed in any case, because its logits are needed.
            missing = state.block_hashes[num_cached // size : (num_tokens - 1) // size]
            if missing and state.waits_for_prefix and self._prefixes.defer(state, missing):
                return True
            needed = blocks_to_start(pool, num_cached, num_tokens)
            if num_cached:
                needed += pool.num_kept_among(blocks_in(tables))
            if self.held_back:
                needed += self._shares.left_to_others(state.client, self.held_back)
            if needed <= pool.num_available:
                break
            if not self._kept.evict_oldest():
                return self._has_several_clients and self._shares.is_short(state, needed)
        self._queue.remove(state)
        if num_cached:
            share_cached(pool, tables, num_cached)
        if request_id in self._kept.states:
            self._kept.evict(request_id)
        allocate(pool, state, tables, num_cached)
        self._start(state)
        return True

    def _start(self, state: RequestState) -> None:
        """Let an admitted request run."""
        state.begin()
        state.status = _PREFILLING
        state.last_chunk = state.admitted_in = self._steps
        self._shares.short.pop(state.client, None)
        state.waits_for_prefix = True
        full = len(state.tokens) // self.cache.page_size
        if full and self.cache.sharing:
            extend_block_hashes(
                state.block_hashes, state.tokens, self.cache.page_size, state.salt, full
            )
            self._prefixes.add(state)
        if self.active_requests and state.rank < self._youngest_rank:
            self._is_sorted = False
        else:
            self._youngest_rank = state.rank
        self.active_requests[state.request_id] = state

    def _extend(self, row: ScheduledRow) -> bool:
        """Give a running request blocks for its next tokens; preempt the youngest if need be.

        Blocks behind its windows are freed.

        Args:
            row: Planned row; shortened if there are fewer blocks.

        Returns:
            False if it has to wait for older requests, or outgrew the pool.
        """
        pool, state, end = self.cache, row.state, row.start + row.count
        free_behind_windows(pool, state)
        blocks, least = pool.pages_for(end), pool.pages_for(row.start + 1)
        while num_missing(state, blocks) > pool.num_available:
            if blocks > least:
                blocks -= 1
                continue
            if self._kept.evict_oldest():
                continue
            running = self.running()
            several = self._has_several_clients
            youngest = self._shares.youngest(running) if several else running[-1]
            if youngest is not state:
                self.preempt(youngest)
                continue
            if max_blocks(pool.windows, pool.page_size, row.start + 1) > pool.num_pages:
                self._remove(state.request_id)
                state.end(f"the cache of {pool.num_pages} pages holds no more of its tokens")
                self._free(state)
                self.failed.append(state)
            return False
        extend(pool, state, blocks)
        if state.num_allocated < end:
            row.count, row.is_last = state.num_allocated - row.start, False
        return row.count > 0


class _StepRows:
    """Rows of a step, and its budgets.

    Attributes:
        tokens: Tokens that may still run.
        entries: Cache entries (positions, summed over rows) that may still be read.
        allowed: Prompt tokens that each client may still have; ``None``: any number.
        rows: Rows that run, each request at most once.
        passed: Prompts whose clients have used up their tokens; they come again behind all others.
    """

    __slots__ = ("allowed", "entries", "passed", "rows", "tokens")

    def __init__(self, tokens: int, entries: int, allowed: dict[str, int] | None) -> None:
        """Start without rows."""
        self.tokens = tokens
        self.entries = entries
        self.allowed = allowed
        self.rows: list[ScheduledRow] = []
        self.passed: list[RequestState] = []


class _MarginScheduler(Scheduler):
    """Admits no new request beside others while ``safety_margin`` of the pool or less is available.

    So running requests keep blocks to grow into.
    """

    def __init__(
        self, cache: BlockPool, retain_cache_on_finish: bool = False, safety_margin: float = 0.2
    ) -> None:
        """Start without requests.

        Args:
            cache: Pool of the blocks.
            retain_cache_on_finish: True to let a new request go on in the blocks of a finished
                one of the same id, if these were kept.
            safety_margin: Share of the pool, from 0 to 1. With 0.2 new requests wait while 80 %
                of it is full.

        Raises:
            ValueError: The margin is no share.
        """
        super().__init__(cache, retain_cache_on_finish)
        if not 0 <= safety_margin <= 1:
            raise ValueError(f"`safety_margin` is {safety_margin}: must be from 0 to 1")
        self.safety_margin = safety_margin

    @property
    def num_spare(self) -> int:
        """Blocks of the safety margin."""
        return int(self.safety_margin * self.cache.num_pages)

    def may_admit(self, state: RequestState) -> bool:
        """Return whether enough of the pool is available, or no other request runs."""
        return not self.active_requests or self.cache.num_available > self.num_spare


class FIFOScheduler(_MarginScheduler):
    """Decoding requests first, then prompts that were begun, then new ones, each by rank.

    So a prompt that arrives delays running streams by one chunk: the rest of a step's token
    budget. To keep blocks for the decoding ones, no new request is admitted beside others while
    ``safety_margin`` of the pool or less is available.
    """

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        """Choose the rows of the next step; see ``Scheduler.schedule_batch``."""
        decoding, begun = _by_phase(self.running())
        candidates = chain(decoding, begun, self.in_turn())
        return self.schedule(candidates, token_budget, cache_budget)


class PrefillFirstScheduler(_MarginScheduler):
    """Prompts that were begun first, then decoding requests, then new ones, each by rank.

    A prompt is completed as fast as the token budget allows, at the cost of the running streams.
    By default there is no safety margin.
    """

    def __init__(
        self, cache: BlockPool, retain_cache_on_finish: bool = False, safety_margin: float = 0.0
    ) -> None:
        """Start without requests; see `FIFOScheduler`."""
        super().__init__(cache, retain_cache_on_finish, safety_margin)

    def may_admit(self, state: RequestState) -> bool:
        """Return whether enough of the pool is available, or there is no margin."""
        return not self.safety_margin or super().may_admit(state)

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        """Choose the rows of the next step; see ``Scheduler.schedule_batch``."""
        decoding, begun = _by_phase(self.running())
        candidates = chain(begun, decoding, self.in_turn())
        return self.schedule(candidates, token_budget, cache_budget)


def _by_phase(running: list[RequestState]) -> tuple[list[RequestState], list[RequestState]]:
    """Split running requests into those that decode and those whose prompt is being read."""
    decoding = [state for state in running if state.status is _DECODING]
    if len(decoding) == len(running):
        return decoding, []
    return decoding, [state for state in running if state.status is not _DECODING]
