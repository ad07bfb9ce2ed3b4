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
that: who waits below its share gets the place of a row of the client furthest above its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from asyncgen.engine.scheduling.clients import ClientShares, lengthen
from asyncgen.engine.scheduling.groups import (
    begin_tables,
    extend_tables,
    find_tables,
    give_back,
    num_missing,
    num_to_start,
    publish,
)
from asyncgen.engine.scheduling.pages import GONE, extend_keys, held, most_pages
from asyncgen.engine.scheduling.retained import RetainedPages
from asyncgen.engine.scheduling.state import RequestStatus, ScheduledRow, check_new
from asyncgen.engine.scheduling.waiting import PrefixLeaders, WaitingQueue
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from asyncgen.engine.scheduling.pages import PagePool
    from asyncgen.engine.scheduling.state import RequestState


_PENDING = RequestStatus.PENDING
_PREFILLING = RequestStatus.PREFILLING
_PREFILLING_SPLIT = RequestStatus.PREFILLING_SPLIT
_SPLIT_PENDING_REMAINDER = RequestStatus.SPLIT_PENDING_REMAINDER
_DECODING = RequestStatus.DECODING


class Scheduler(ABC):
    """Waiting and running requests, their pages and their order.

    A subclass overrides ``schedule_batch``, and ``may_admit`` if it likes.

    Attributes:
        cache: The pool that pages come from.
        retain_cache_on_finish: Whether a new request goes on in the pages of a finished one of the
            same id, whose pages were left in place (``finish_request`` without eviction).
        active_requests: Running requests by id.
        max_running: How many requests may run at a time.
        ageing: How many steps of waiting a level of priority is worth, at least 1.
        held_back: Pages that admission leaves available, for a reservation that waits for them.
        num_preemptions: How often a request had to give its pages up.
        failed: Requests that outgrew the pool, until ``take_failed``.
    """

    def __init__(self, cache: PagePool, retain_cache_on_finish: bool = False) -> None:
        """Start without requests.

        Args:
            cache: The pool that pages come from.
            retain_cache_on_finish: Whether a new request goes on in the pages of a finished one
                of the same id, if these were left in place.
        """
        self.cache = cache
        self.retain_cache_on_finish = retain_cache_on_finish
        self.active_requests: dict[str, RequestState] = {}
        self.max_running = 256
        self.ageing = 512
        self.held_back = 0
        self.num_preemptions = 0
        self.failed: list[RequestState] = []
        self._queue = WaitingQueue()
        self._retained = RetainedPages(cache)
        self._cancelled: dict[str, RequestState] = {}
        self._leaders = PrefixLeaders(self._queue)
        self._present: Counter[str] = Counter()
        self._shares = ClientShares(self._present, self._queue, cache)
        self._arrivals = 0
        self._steps = 0
        self._junior_rank = (0, -1)
        self._is_sorted = True

    @property
    def waiting_requests(self) -> dict[str, RequestState]:
        """Waiting requests by id, in no particular order."""
        return self._queue.states

    @property
    def num_waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """How many requests hold pages and take part in steps."""
        return len(self.active_requests)

    def running(self) -> list[RequestState]:
        """The running requests, lowest rank (most senior) first; a copy."""
        if not self._is_sorted:
            self._sort()
        return list(self.active_requests.values())

    def waiting(self) -> list[RequestState]:
        """The waiting requests, next first; a copy."""
        several = self._are_clients_several
        return self._shares.ranked(self.active_requests) if several else self._queue.ranked()

    def add_waiting_request(self, state: RequestState) -> None:
        """Queue a request.

        Args:
            state: A new one; its ``arrival`` and ``rank`` are set here.

        Raises:
            InvalidRequestError: Its id is taken, it has no tokens, or it could not run even if it
                had the whole pool.
        """
        self._check(state)
        state.arrival = self._arrivals
        state.rank = (self._steps - state.priority * self.ageing, self._arrivals)
        self._arrivals += 1
        self._present[state.client] += 1
        self._queue.push(state)

    @abstractmethod
    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        """Choose the rows of the next step.

        Args:
            token_budget: Most tokens that may run.
            cache_budget: Most cache entries (positions, summed over rows) that may be read.

        Returns:
            Rows to compute, each request at most once; empty if nothing can run now.
        """

    def has_pending_requests(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.active_requests or self._queue.states)

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
            state.num_computed = end = row.start + row.count
            if end >= (state.num_published + 1) * page_size:
                for key in publish(self.cache, state):
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
            row.state.num_computed = row.start + row.count
            if row.state.status is not _DECODING:
                row.state.status = _DECODING if row.is_last else _SPLIT_PENDING_REMAINDER

    def finish_request(self, request_id: str, evict_from_cache: bool = True) -> None:
        """Let a request go, wherever it is; an unknown one is fine.

        Args:
            request_id: A waiting, running or finished request.
            evict_from_cache: Whether to give its pages back. If not, they stay its own until it
                is finished again with eviction, until a request of the same id goes on in them
                (``retain_cache_on_finish``), or until their space is needed.
        """
        state = self._remove(request_id)
        if state is None:
            if evict_from_cache and request_id in self._retained.states:
                self._retained.evict(request_id)
            return
        state.end()
        # A state is behind all tokens of its text, so no other text could go on from it.
        if evict_from_cache or not state.pages or state.slot >= 0:
            self._release(state)
        else:
            self._retained.keep(state)

    def hold_back(self, num_pages: int, client: str = "") -> None:
        """Leave pages available for a reservation that waits for them; see ``held_back``.

        Args:
            num_pages: How many; 0 for none any more.
            client: Whose they will be. Other clients take them all the same while they hold less
                than their share.
        """
        self.held_back = num_pages
        self._shares.guest = client if num_pages else None
        if num_pages:
            self.evict_retained(num_pages)

    def may_reserve(self, client: str) -> bool:
        """Whether pages that are available may be reserved for a client, others having had more."""
        return self._shares.may_reserve(client)

    def evict_retained(self, num_pages: int) -> None:
        """Take pages away from finished requests, until so many are available or none has any."""
        while self.cache.num_available < num_pages and self._retained.evict_oldest():
            pass

    def get_active_request_static_outputs(self, request_id: str) -> list[int]:
        """Token ids that a running request generated so far; empty for any other."""
        state = self.active_requests.get(request_id)
        return [] if state is None else state.generated_tokens

    def set_request_cancellation(self, request_id: str) -> None:
        """Mark a request for ``clear_cancelled_requests``; an unknown one is fine."""
        state = self._find(request_id)
        if state is not None:
            state.cancelled = True
            self._cancelled[request_id] = state

    def clear_cancelled_requests(self) -> list[RequestState]:
        """Let every request go that is marked.

        Returns:
            Who they are, with what they generated.
        """
        cleared = []
        for request_id, state in self._cancelled.items():
            if self._find(request_id) is state:
                self.finish_request(request_id)
                cleared.append(state)
        self._cancelled.clear()
        return cleared

    def request_is_cancelled(self, request_id: str) -> bool:
        """Whether a request is marked for cancellation, or is not here (any more)."""
        state = self._find(request_id)
        return state is None or state.cancelled

    def take_failed(self) -> list[RequestState]:
        """Requests that outgrew the pool since the last call; they are gone, ``error`` is set."""
        failed, self.failed = self.failed, []
        return failed

    def clear(self) -> list[RequestState]:
        """Let every request go.

        Returns:
            The running and waiting ones, senior first.
        """
        states = [*self.running(), *self.waiting()]
        for state in states:
            self.finish_request(state.request_id)
        while self._retained.evict_oldest():
            pass
        self._cancelled.clear()
        return states

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
        the highest rank, of the client that holds most pages. A waiting one is admitted if there
        are pages for all of its tokens; if not, no other one of its client is admitted in this
        step, so that small requests do not pass a large one for ever. One whose beginning another
        request computes now waits for that; so does a row that does not fit, unless it is first.

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
        admitting = True
        rows: list[ScheduledRow] = []
        passed: list[RequestState] = []  # prompts whose clients get none of the tokens, at first
        for state in chain(candidates, passed):
            if token_budget <= 0:
                break
            if state.status is _PENDING:
                if not admitting or preemptions != self.num_preemptions or cache_budget <= 0:
                    continue
                if is_shared and self._shares.has_to_wait(state, most):
                    continue
                admitting = self._admit(state, max_running)
                if state.status is _PENDING:
                    continue
            start = state.num_computed
            num_tokens = len(state.tokens)
            count = num_tokens - start
            if count > 1 and not state.is_whole:
                count = min(count, token_budget, state.prefill_chunk_size or count)
            elif rows and (count > token_budget or count > cache_budget):
                continue  # alone in a step it may have more
            if most is not None and state.status is not _DECODING and state not in passed:
                if (allowed := most.get(state.client, count)) <= 0:
                    passed.append(state)
                    continue
                count = count if state.is_whole else min(count, allowed)
            if start + count > cache_budget and rows:
                admitting = False
                count = cache_budget - start
            if count <= 0:
                continue
            end = start + count
            if end > state.room:
                end = self._grow(state, start, end)
                if end <= start:
                    admitting = False
                    continue
                count = end - start
            if state.status is not _DECODING:
                state.status = _PREFILLING if end == num_tokens else _PREFILLING_SPLIT
                state.last_chunk = self._steps
                if most is not None and state.client in most:
                    most[state.client] -= count
            rows.append(
                ScheduledRow(state, start, count, state.pages, end == num_tokens, state.more)
            )
            token_budget -= count
            cache_budget -= end
        if preemptions != self.num_preemptions:
            rows = [row for row in rows if row.state.status is not _PENDING]
        if most is not None:
            lengthen(rows, token_budget, cache_budget)
        if is_shared:
            self._shares.end_step(rows, self.active_requests, max_running, self.num_spare)
        return rows

    def preempt(self, state: RequestState) -> None:
        """Send a running request back to wait, without its pages.

        Its rank brings it to the front again; pages that are still known are not computed again.
        """
        del self.active_requests[state.request_id]
        self._release(state)
        state.status = _PENDING
        state.num_preemptions += 1
        self.num_preemptions += 1
        self._queue.push(state)

    def check_integrity(self) -> None:
        """Prove that the books of scheduler and pool are right; for tests.

        Raises:
            AssertionError: They are not.
        """
        running, waiting = self.active_requests, self._queue.states
        assert not running.keys() & waiting.keys(), "a request both waits and runs"
        assert not running.keys() & self._retained.states, "a running one has ended"
        for state in waiting.values():
            assert state.status is _PENDING, "a waiting request looks like a running one"
            assert not state.pages, "a waiting request holds pages"
        for state in running.values():
            assert state.status not in (_PENDING, RequestStatus.FINISHED, RequestStatus.FAILED)
            assert state.pages, "a running request holds no pages"
        self._leaders.check_integrity(running)
        self.cache.check_integrity([*running.values(), *self._retained.states.values()])

    # Queue and books.

    def _check(self, state: RequestState) -> None:
        request_id = state.request_id
        if self._find(request_id) is not None:
            raise InvalidRequestError("request_id", request_id, "must differ from those in use")
        if request_id in self._retained.states and not self.retain_cache_on_finish:
            raise InvalidRequestError(
                "request_id",
                request_id,
                "the pages of a finished request of this id are still held; evict them first",
            )
        check_new(state, self.cache)

    def _find(self, request_id: str) -> RequestState | None:
        return self.active_requests.get(request_id) or self._queue.states.get(request_id)

    def _remove(self, request_id: str) -> RequestState | None:
        """Take a request out of the running or waiting ones; its pages stay."""
        state = self.active_requests.pop(request_id, None)
        if state is not None:
            self._leaders.leave(state)
        elif (state := self._queue.states.get(request_id)) is not None:
            self._queue.remove(state)
        if state is not None:
            self._present -= Counter((state.client,))
            if len(self._present) == 1 and not self._are_clients_several:
                self._shares.forget()
        return state

    def _release(self, state: RequestState) -> None:
        """Take a request's pages away."""
        self._leaders.leave(state)
        self.cache.release(state.drop_pages())
        state.slot = self.cache.release_slot(state.slot)

    def _sort(self) -> None:
        by_rank = sorted(self.active_requests.values(), key=lambda state: state.rank)
        self.active_requests = {state.request_id: state for state in by_rank}
        self._is_sorted = True

    @property
    def _are_clients_several(self) -> bool:
        """Whether there is anybody to share with, in the batch or beside it."""
        present, beside, guest = self._present, self.cache.reserved_by, self._shares.guest
        if len(present) > 1 or (guest is not None and guest not in present):
            return True
        return bool(beside) and not beside.keys() <= present.keys()

    def _share_out(self, token_budget: int, max_running: int) -> dict[str, int] | None:
        """Make way for clients below their shares; return what prompts of each may have now."""
        guest = self._shares.guest
        if guest is not None and self.held_back > self.cache.num_available:
            self._shares.short[guest] = self.held_back
        for state in self._shares.to_give_up(self.running(), self._steps):
            self.preempt(state)
        active = self.active_requests
        decoding = sum(state.status is _DECODING for state in active.values())
        budget, has_seats = max(token_budget - decoding, 0), len(active) < max_running
        return self._shares.prompt_tokens(active, budget, has_seats=has_seats)

    # Pages.

    def _admit(self, state: RequestState, max_running: int) -> bool:
        """Start a waiting request or set it aside.

        Returns:
            Whether others may be admitted after it; its status tells whether it was.
        """
        if len(self.active_requests) >= max_running or not self.cache.has_slot:
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
            blocks = pool.pages_for(num_known)
            if state.waits_for_prefix:
                # Each request computes at least its last token, because it needs the logits.
                usable = (len(state.tokens) - 1) // pool.page_size
                awaited = self._leaders.awaited_key(state.page_keys[blocks:usable])
                if awaited is not None:
                    self._queue.set_aside(state, awaited)
                    return True
            known = held(tables)
            needed = num_to_start(pool, blocks, len(state.tokens)) + pool.num_kept_among(known)
            if self.held_back:
                needed += self._shares.left_to_others(state.client, self.held_back)
            if needed <= pool.num_available:
                break
            if not self._retained.evict_oldest():
                return several and self._shares.is_short(state, needed)
        self._queue.remove(state)
        pool.share(known)
        if state.request_id in self._retained.states:
            self._retained.evict(state.request_id)
        self._start(state, begin_tables(pool, tables, num_known, len(state.tokens)), num_known)
        return True

    def _start(self, state: RequestState, tables: list[list[int]], num_known: int) -> None:
        """Let an admitted request run, with its pages, so many of its tokens being known."""
        state.begin()
        state.pages, *state.more = tables
        state.slot = self.cache.take_slot()
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
            extend_keys(state.page_keys, state.tokens, self.cache.page_size, state.salt, full)
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
        blocks = 0
        if pool.sharing:
            usable = (len(state.tokens) - 1) // page_size
            extend_keys(state.page_keys, state.tokens, page_size, state.salt, usable)
            tables, blocks = find_tables(pool, state.page_keys[:usable])
        if state.request_id in self._retained.states:
            retained, num_retained = self._retained.known(state)
            if num_retained > blocks * page_size:
                return retained, num_retained
        return tables, blocks * page_size

    def _grow(self, state: RequestState, start: int, end: int) -> int:
        """Give a running request pages for its next tokens, at the cost of the youngest if need be.

        Args:
            state: The request; what is behind its windows is given back.
            start: Position of the next token.
            end: The position behind those that shall be computed.

        Returns:
            How far it may go: ``end``, less where pages are few, or ``start`` if it waits for its
            seniors or outgrew the pool.
        """
        pool = self.cache
        give_back(pool, state)
        blocks, least = pool.pages_for(end), pool.pages_for(start + 1)
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
            if most_pages(pool.windows, pool.page_size, start + 1) > pool.num_pages:
                self._remove(state.request_id)
                state.end(f"the cache of {pool.num_pages} pages holds no more of its tokens")
                self._release(state)
                self.failed.append(state)
            return start
        extend_tables(pool, state, blocks)
        return min(end, state.room)
