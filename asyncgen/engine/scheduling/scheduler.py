"""Which rows run in the next step, and on which pages. Plain Python: no torch, no clock, no thread.

``Scheduler`` does everything but choose: it queues, admits, finds known prefixes, hands out pages,
takes them back from the youngest when they run out, and keeps to the budgets. A subclass puts the
candidates in order (``schedule_batch``) and leaves the rest to ``schedule``.

The life of a request here::

    add_waiting_request -> waiting -> admitted: running, with pages -> finish_request
                              ^-------------- preempt ----'

For each step, the owner calls ``clear_cancelled_requests``, ``schedule_batch``, the model,
``computed``; then appends the sampled tokens to ``state.tokens`` and ends the requests that are
done. All of it happens on one thread.

Clients share seats, pages and prompt tokens evenly (`clients`). No row that decodes is skipped for
that: who waits below its share gets the place of a row of the client furthest above its own. Where
``passes_decoding`` is set all of them sit a step out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_hashes import extend_block_hashes
from asyncgen.engine.kv_cache.block_pool import GONE, held, most_pages
from asyncgen.engine.kv_cache.cache_groups import (
    begin_block_tables,
    extend_block_tables,
    find_partial_block,
    give_back,
    num_missing,
    num_to_start,
    publish,
)
from asyncgen.engine.kv_cache.state_snapshots import (
    advance,
    ask_for_snapshot,
    begin_states,
    find_start,
    keep_state,
)
from asyncgen.engine.scheduling.request_table import RequestTable
from asyncgen.engine.scheduling.state import RequestStatus, ScheduledRow
from asyncgen.engine.scheduling.step_plan import StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from asyncgen.engine.scheduling.state import RequestState


_PENDING = RequestStatus.PENDING
_PREFILLING = RequestStatus.PREFILLING
_PREFILLING_SPLIT = RequestStatus.PREFILLING_SPLIT
_SPLIT_PENDING_REMAINDER = RequestStatus.SPLIT_PENDING_REMAINDER
_DECODING = RequestStatus.DECODING


class Scheduler(RequestTable, ABC):
    """Waiting and running requests, their pages and their order.

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
            can while ``passes_decoding`` is set, it is asked again without.
        """

    def computed(self, rows: Sequence[ScheduledRow]) -> None:
        """Note that rows were computed; their full pages can be found by others from now on.

        Args:
            rows: What ``schedule_batch`` gave. Rows of requests that left meanwhile are ignored.
        """
        page_size = self.cache.page_size
        for row in rows:
            state = row.state
            if not state.pages:
                continue
            advance(self.cache, row)
            state.num_computed = end = row.start + row.count
            if end >= (state.num_published + 1) * page_size:
                found = publish(self.cache, state)
                keep_state(self.cache, row)
                for key in found:
                    self._leaders.settle(state, key)
            if state.status is not _DECODING:
                state.status = _DECODING if row.is_last else _SPLIT_PENDING_REMAINDER

    def begun(self, rows: Sequence[ScheduledRow]) -> None:
        """Note that rows will have been computed by the time of the next step.

        ``schedule_batch`` may come before ``computed`` then; others find the pages only after it.

        Args:
            rows: What ``schedule_batch`` gave.
        """
        for row in rows:
            advance(self.cache, row)
            row.state.num_computed = row.start + row.count
            if row.state.status is not _DECODING:
                row.state.status = _DECODING if row.is_last else _SPLIT_PENDING_REMAINDER

    # What subclasses build on.

    def in_turn(self) -> Iterator[RequestState]:
        """The waiting requests one by one, next first, for ``schedule`` alone.

        Of each client, it ends behind a request that could not be admitted, and costs nothing for
        those behind; nor for anybody where no seat is free.
        """
        if not self._are_clients_several:
            yield from self._queue.in_turn(next(iter(self._present), ""))
        elif self.num_running < self.max_running:
            yield from self._shares.turns(self.active_requests)

    @property
    def num_spare(self) -> int:
        """Pages that ``may_admit`` leaves available beside running requests; none, here."""
        return 0

    def may_admit(self, state: RequestState) -> bool:
        """Whether a waiting request may start now, if there are pages for it; always, here.

        Args:
            state: Who would be next.
        """
        return True

    def schedule(
        self, candidates: Iterable[RequestState], token_budget: int, cache_budget: int
    ) -> list[ScheduledRow]:
        """Make rows of candidates, in the order given, as far as budgets and pages go.

        A running request that needs a page takes it, if none is left, from the running request of
        the highest rank, of the client that holds most, what it is owed aside. A waiting one is
        admitted if there are pages for all of its tokens; if not, no other one of its client is
        admitted in this step, so that small requests do not pass a large one for ever. One whose
        beginning another request computes now waits for that; so does a row that does not fit,
        unless it is first.

        Args:
            candidates: Running and waiting requests, most important first. Read one by one.
            token_budget: Most tokens that may run.
            cache_budget: Most cache entries that may be read.

        Returns:
            The rows.
        """
        self._steps += 1
        if self._queue.aside:
            self._leaders.recall_the_impatient(self._steps)
        max_running = min(self.max_running, token_budget)
        is_shared = self._are_clients_several
        most = self._share_out(token_budget, max_running) if is_shared else None
        preemptions = self.num_preemptions
        passes = self.passes_decoding
        tokens = token_budget - (self._count_decoding() if passes else 0)
        plan = StepPlan(self.cache, tokens, cache_budget, passes, most)
        for state in chain(candidates, plan.passed):
            if plan.tokens <= 0:
                break
            if state.status is _PENDING:
                if not plan.is_open or preemptions != self.num_preemptions or plan.entries <= 0:
                    continue
                if is_shared and self._shares.has_to_wait(state, most):
                    continue
                plan.is_open = self._admit(state, max_running)
                if state.status is _PENDING:
                    continue
            row = plan.row(state)
            if row is None:
                continue
            if row.start + row.count > state.room and not self._grow(row):
                plan.is_open = False
                continue
            plan.add(row, self._steps)
        if preemptions != self.num_preemptions:
            plan.drop_preempted()
        if most is not None:
            plan.lengthen()
        if is_shared:
            self._shares.end_step(plan.rows, self.active_requests, max_running, self.num_spare)
        return plan.rows

    def _share_out(self, token_budget: int, max_running: int) -> dict[str, int] | None:
        """Make way for clients below their shares; return what prompts of each may have now."""
        guest = self._shares.guest
        if guest is not None and self.held_back > self.cache.num_available:
            self._shares.short[guest] = self.held_back
        for state in self._shares.to_give_up(self.running(), self._steps):
            self.preempt(state)
        active = self.active_requests
        budget = max(token_budget - self._count_decoding(), 0)
        has_seats = len(active) < max_running
        return self._shares.prompt_tokens(active, budget, has_seats=has_seats)

    def _count_decoding(self) -> int:
        """How many of the running requests decode."""
        return sum(state.status is _DECODING for state in self.active_requests.values())

    # Pages.

    def _admit(self, state: RequestState, max_running: int) -> bool:
        """Start a waiting request or set it aside.

        Returns:
            Whether others may be admitted after it; its status tells whether it was.
        """
        slots = self.cache.slots
        if len(self.active_requests) >= max_running or not (slots is None or slots.has_room):
            return False
        several = self._are_clients_several
        if not self.may_admit(state):
            least = max(self.num_spare, self.cache.num_available) + 1
            return several and self._shares.is_short(state, least)
        if self._queue.is_aside(state):
            return True
        pool = self.cache
        while True:
            tables, num_known = self._known(state)
            if state.waits_for_prefix:
                # Each request computes at least its last token, because it needs the logits.
                usable = (len(state.tokens) - 1) // pool.page_size
                keys = state.block_hashes[num_known // pool.page_size : usable]
                awaited = self._leaders.awaited_key(keys)
                if awaited is not None:
                    if slots is not None:
                        ask_for_snapshot(*self._leaders.who_computes(awaited))
                    self._queue.set_aside(state, awaited)
                    return True
            known = held(tables)
            needed = num_to_start(pool, num_known, len(state.tokens)) + pool.num_kept_among(known)
            if self.held_back:
                needed += self._shares.left_to_others(state.client, self.held_back)
            if needed <= pool.num_available:
                break
            if not self._retained.evict_oldest():
                return several and self._shares.is_short(state, needed)
        self._queue.remove(state)
        pool.share(known)
        if num_known % pool.page_size:  # the last page will be written, so nobody else may find it
            pool.withdraw(table[-1] for table in tables)
        if state.request_id in self._retained.states:
            self._retained.evict(state.request_id)
        self._start(
            state, begin_block_tables(pool, tables, num_known, len(state.tokens)), num_known
        )
        return True

    def _start(self, state: RequestState, tables: list[list[int]], num_known: int) -> None:
        """Let an admitted request run, with its pages, so many of its tokens being known."""
        state.begin()
        state.pages, *state.more = tables
        begin_states(self.cache, state, num_known)
        state.room = min(map(len, tables)) * self.cache.page_size
        state.num_gone = sum(table.count(GONE) for table in tables)
        state.num_computed = state.num_cached = num_known
        state.num_published = num_known // self.cache.page_size
        state.status = _SPLIT_PENDING_REMAINDER
        state.last_chunk = state.admitted_in = self._steps
        state.admitted_with = len(state.tokens)
        self._shares.short.pop(state.client, None)
        state.waits_for_prefix = True
        if self.cache.sharing:
            full = len(state.tokens) // self.cache.page_size
            extend_block_hashes(
                state.block_hashes, state.tokens, self.cache.page_size, state.salt, full
            )
            self._leaders.lead(state)
        if self.active_requests and state.rank < self._junior_rank:
            self._is_sorted = False
        else:
            self._junior_rank = state.rank
        self.active_requests[state.request_id] = state

    def _known(self, state: RequestState) -> tuple[list[list[int]], int]:
        """What the tables of a request may begin with, and how many of its tokens that holds."""
        pool, page_size = self.cache, self.cache.page_size
        tables: list[list[int]] = [[] for _ in pool.windows]
        num_known = 0
        if pool.sharing:
            usable = (len(state.tokens) - 1) // page_size
            extend_block_hashes(state.block_hashes, state.tokens, page_size, state.salt, usable)
            tables, blocks, longest = find_start(pool, state.block_hashes[:usable])
            if longest > blocks:
                ask_for_snapshot(state, longest)
            tables, num_known = find_partial_block(pool, state, blocks) or (
                tables,
                blocks * page_size,
            )
        if state.request_id in self._retained.states:
            retained, num_retained = self._retained.known(state)
            if num_retained > num_known:
                return retained, num_retained
        return tables, num_known

    def _grow(self, row: ScheduledRow) -> bool:
        """Give a running request pages for its next tokens, at the cost of the youngest if need be.

        Args:
            row: What shall be computed of it, less where pages are few; what is behind its windows
                is given back.

        Returns:
            Whether it goes on: not if it waits for its seniors or outgrew the pool.
        """
        pool, state, end = self.cache, row.state, row.start + row.count
        give_back(pool, state)
        blocks, least = pool.pages_for(end), pool.pages_for(row.start + 1)
        while num_missing(state, blocks) > pool.num_available:
            if blocks > least:
                blocks -= 1
                continue
            if self._retained.evict_oldest():
                continue
            seniors = self.running()
            junior = self._shares.junior(seniors) if self._are_clients_several else seniors[-1]
            if junior is not state:
                self.preempt(junior)
                continue
            if most_pages(pool.windows, pool.page_size, row.start + 1) > pool.num_pages:
                self._remove(state.request_id)
                state.end(f"the cache of {pool.num_pages} pages holds no more of its tokens")
                self._release(state)
                self.failed.append(state)
            return False
        extend_block_tables(pool, state, blocks)
        if state.room < end:
            row.count, row.is_last = state.room - row.start, False
        return row.count > 0
