"""Keep the requests of a scheduler: waiting, running and finished ones, and their blocks.

Plain Python over integers. `scheduler` decides which of them run in a step.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_pool import max_blocks
from asyncgen.engine.kv_cache.block_tables import free
from asyncgen.engine.scheduling.client_shares import ClientShares
from asyncgen.engine.scheduling.kept_requests import KeptRequests
from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.engine.scheduling.waiting_queue import PrefixesInProgress, WaitingQueue
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.state import RequestState

_PENDING = RequestStatus.PENDING


class RequestTable:
    """Waiting, running and finished requests by id, and their blocks.

    Attributes:
        cache: Pool of the blocks.
        retain_cache_on_finish: True to let a new request go on in the blocks of a finished one of
            the same id, if these were kept (``finish_request`` without eviction).
        active_requests: Running requests by id.
        max_running: Most requests that run at a time.
        ageing: Steps of waiting that a level of priority is worth, at least 1.
        passes_decoding: True to let decoding requests sit the next step out; their tokens are left
            unused.
        held_back: Free blocks that admission leaves for a reservation that waits for them.
        num_preemptions: Number of preemptions so far.
        failed: Requests that outgrew the pool, until ``take_failed``.
    """

    def __init__(self, cache: BlockPool, retain_cache_on_finish: bool = False) -> None:
        """Start without requests.

        Args:
            cache: Pool of the blocks.
            retain_cache_on_finish: True to let a new request go on in the blocks of a finished
                one of the same id, if these were kept.
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
        self._kept = KeptRequests(cache)
        self._cancelled: dict[str, RequestState] = {}
        self._prefixes = PrefixesInProgress(self._queue)
        self._present: Counter[str] = Counter()
        self._shares = ClientShares(self._present, self._queue, cache)
        self._arrivals = 0
        self._steps = 0
        self._youngest_rank = (0, -1)
        self._is_sorted = True

    @property
    def waiting_requests(self) -> dict[str, RequestState]:
        """Waiting requests by id, in no particular order."""
        return self._queue.states

    @property
    def num_waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue.states)

    @property
    def num_running(self) -> int:
        """Number of running requests: they hold blocks and take part in steps."""
        return len(self.active_requests)

    @property
    def num_admissible(self) -> int:
        """Number of waiting requests that a seat is free for; of several clients, one of each."""
        num_waiting = len(self._queue.states)
        if not num_waiting:
            return 0
        most = len(self._present) if self._has_several_clients else num_waiting
        return max(min(most, num_waiting, self.max_running - len(self.active_requests)), 0)

    def running(self) -> list[RequestState]:
        """Return the running requests, lowest rank (oldest) first; a copy."""
        if not self._is_sorted:
            by_rank = sorted(self.active_requests.values(), key=lambda state: state.rank)
            self.active_requests = {state.request_id: state for state in by_rank}
            self._is_sorted = True
        return list(self.active_requests.values())

    def waiting(self) -> list[RequestState]:
        """Return the waiting requests, next first; a copy."""
        several = self._has_several_clients
        return self._shares.ranked(self.active_requests) if several else self._queue.ranked()

    def add_waiting_request(self, state: RequestState) -> None:
        """Queue a request.

        Args:
            state: A new request; its ``arrival`` and ``rank`` are set here.

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
        """Return whether any request waits or runs."""
        return bool(self.active_requests or self._queue.states)

    def finish_request(self, request_id: str, evict_from_cache: bool = True) -> None:
        """Remove a request, wherever it is; an unknown one is fine.

        Args:
            request_id: Id of a waiting, running or finished request.
            evict_from_cache: True to free its blocks. Else they are kept until the request is
                finished again with eviction, until a request of the same id goes on in them
                (``retain_cache_on_finish``), or until their memory is needed.
        """
        state = self._remove(request_id)
        if state is None:
            if evict_from_cache and request_id in self._kept.states:
                self._kept.evict(request_id)
            return
        state.end()
        if not state.block_tables:
            return
        # A text with a state goes on from a snapshot only, which needs no kept request.
        if evict_from_cache or self.cache.slots is not None:
            self._free(state)
        else:
            self._prefixes.remove(state)
            self._kept.keep(state)

    def hold_back(self, num_pages: int, client: str = "") -> None:
        """Keep blocks free for a reservation that waits for them; see ``held_back``.

        Args:
            num_pages: Number of blocks; 0 for none any more.
            client: Client of the reservation. Other clients take the blocks all the same while
                they hold less than their share.
        """
        self.held_back = num_pages
        self._shares.guest = client if num_pages else None
        if num_pages:
            while self.cache.num_available < num_pages and self._kept.evict_oldest():
                pass

    def may_reserve(self, client: str) -> bool:
        """Return whether a client may reserve free blocks; False if others have had less."""
        return self._shares.may_reserve(client)

    def get_active_request_static_outputs(self, request_id: str) -> list[int]:
        """Return the token ids that a running request generated so far; empty for any other."""
        state = self.active_requests.get(request_id)
        return [] if state is None else state.generated_tokens

    def set_request_cancellation(self, request_id: str) -> None:
        """Mark a request for ``clear_cancelled_requests``; an unknown one is fine."""
        state = self._find(request_id)
        if state is not None:
            state.cancelled = True
            self._cancelled[request_id] = state

    def clear_cancelled_requests(self) -> list[RequestState]:
        """Remove every request that is marked; return them, with the tokens they generated."""
        cleared = []
        for request_id, state in self._cancelled.items():
            if self._find(request_id) is state:
                self.finish_request(request_id)
                cleared.append(state)
        self._cancelled.clear()
        return cleared

    def request_is_cancelled(self, request_id: str) -> bool:
        """Return whether a request is marked for cancellation, or is not here (any more)."""
        state = self._find(request_id)
        return state is None or state.cancelled

    def take_failed(self) -> list[RequestState]:
        """Return the requests that outgrew the pool since the last call; their ``error`` is set."""
        failed, self.failed = self.failed, []
        return failed

    def clear(self) -> list[RequestState]:
        """Remove every request; return the running and waiting ones, oldest first."""
        states = [*self.running(), *self.waiting()]
        for state in states:
            self.finish_request(state.request_id)
        while self._kept.evict_oldest():
            pass
        self._cancelled.clear()
        return states

    def check_integrity(self) -> None:
        """Prove that scheduler and pool are consistent; for tests.

        Raises:
            AssertionError: They are not.
        """
        running, waiting = self.active_requests, self._queue.states
        assert not running.keys() & waiting.keys(), "a request both waits and runs"
        assert not running.keys() & self._kept.states, "a running request has ended"
        for state in waiting.values():
            assert state.status is _PENDING, "a waiting request looks like a running one"
            assert not state.block_tables, "a waiting request holds blocks"
        for state in running.values():
            assert state.status not in (_PENDING, RequestStatus.FINISHED, RequestStatus.FAILED)
            assert state.block_tables, "a running request holds no blocks"
        self._prefixes.check_integrity(running)
        self.cache.check_integrity([*running.values(), *self._kept.states.values()])

    def _check(self, state: RequestState) -> None:
        """Refuse a request whose id is in use, or that could not run in the empty pool."""
        request_id, pool = state.request_id, self.cache
        if request_id in self.active_requests or request_id in self._queue.states:
            raise InvalidRequestError("request_id", request_id, "must differ from those in use")
        if request_id in self._kept.states and not self.retain_cache_on_finish:
            raise InvalidRequestError(
                "request_id",
                request_id,
                "the pages of a finished request of this id are still held; evict them first",
            )
        if state.status is not _PENDING or state.block_tables:
            raise InvalidRequestError(
                "state", request_id, "was queued before; queue a new one, or a `fork` of it"
            )
        if not state.tokens:
            raise InvalidRequestError("initial_tokens", [], "must hold at least one token")
        most = state.max_new_tokens
        if most is not None and most < 1:
            raise InvalidRequestError(
                "max_new_tokens", most, "must be at least 1, or None for no limit"
            )
        # Keys and values of the last token are never computed.
        num_tokens = len(state.tokens)
        left = max((most or 1) - num_tokens + state.num_prompt_tokens, 1)
        needed = max_blocks(pool.windows, pool.page_size, num_tokens + left - 1)
        if needed > pool.num_pages:
            raise InvalidRequestError(
                "max_new_tokens" if most else "initial_tokens",
                most or num_tokens,
                f"with {num_tokens} tokens before them this takes {needed} pages of "
                f"{pool.page_size} tokens and the cache has {pool.num_pages}; ask for less or "
                "give the cache more memory",
            )

    def _find(self, request_id: str) -> RequestState | None:
        return self.active_requests.get(request_id) or self._queue.states.get(request_id)

    def _remove(self, request_id: str) -> RequestState | None:
        """Remove a request from the running or waiting ones; it keeps its blocks."""
        state = self.active_requests.pop(request_id, None)
        if state is None:
            state = self._queue.states.get(request_id)
            if state is None:
                return None
            self._queue.remove(state)
        present = self._present
        present[state.client] -= 1
        if not present[state.client]:
            del present[state.client]
        if len(present) == 1 and not self._has_several_clients:
            self._shares.forget()
        return state

    def _free(self, state: RequestState) -> None:
        """Free the blocks of a request; others may compute the ones that it has not completed."""
        self._prefixes.remove(state)
        free(self.cache, state)

    @property
    def _has_several_clients(self) -> bool:
        """True if clients share seats and blocks, in the batch or in the side lane."""
        present, reserved, guest = self._present, self.cache.reserved_by, self._shares.guest
        if len(present) > 1 or (guest is not None and guest not in present):
            return True
        return bool(reserved) and not reserved.keys() <= present.keys()
