"""The requests of a scheduler: who waits, who runs, who has ended, and the pages that they hold.

Knows ids, ranks and ends; which rows run in a step is decided in ``scheduler``. Plain Python over
integers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.cache_groups import leave_partial_block
from asyncgen.engine.kv_cache.state_snapshots import end_states
from asyncgen.engine.scheduling.client_shares import ClientShares
from asyncgen.engine.scheduling.kept_requests import KeptRequests
from asyncgen.engine.scheduling.state import RequestStatus, check_new
from asyncgen.engine.scheduling.waiting_queue import PrefixLeaders, WaitingQueue
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.state import RequestState

_PENDING = RequestStatus.PENDING


class RequestTable:
    """Waiting, running and finished requests by id, and what becomes of their pages.

    Attributes:
        cache: The pool that pages come from.
        retain_cache_on_finish: Whether a new request goes on in the pages of a finished one of the
            same id, whose pages were left in place (``finish_request`` without eviction).
        active_requests: Running requests by id.
        max_running: How many requests may run at a time.
        ageing: How many steps of waiting a level of priority is worth, at least 1.
        passes_decoding: Whether requests that decode sit the next step out: their tokens are left
            unused.
        held_back: Pages that admission leaves available, for a reservation that waits for them.
        num_preemptions: How often a request had to give its pages up.
        failed: Requests that outgrew the pool, until ``take_failed``.
    """

    def __init__(self, cache: BlockPool, retain_cache_on_finish: bool = False) -> None:
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
        self.passes_decoding = False
        self.held_back = 0
        self.num_preemptions = 0
        self.failed: list[RequestState] = []
        self._queue = WaitingQueue()
        self._retained = KeptRequests(cache)
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

    @property
    def num_newcomers(self) -> int:
        """Waiting requests that have a seat to begin in; of several clients, one of each."""
        seats = self.max_running - self.num_running
        many = len(self._present) if self._are_clients_several else self.num_waiting
        return max(min(many, self.num_waiting, seats), 0)

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

    def has_pending_requests(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self.active_requests or self._queue.states)

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
        # A state goes on only from where it was kept, which it is with pages and without them.
        if evict_from_cache or not state.pages or self.cache.slots is not None:
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
        end_states(self.cache, state)
        leave_partial_block(self.cache, state)
        self.cache.release(state.drop_pages())

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
