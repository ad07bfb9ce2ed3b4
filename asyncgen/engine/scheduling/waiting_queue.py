"""Queue the requests without memory, and defer those whose beginning another one computes now.

A rank never changes: it is the step of arrival, less a fixed number of steps for each level of
priority. So waiting counts as much as priority does, nothing is sorted again as time goes by, and
no request is overtaken for ever. Ranks order the requests of one client; `client_shares` orders the
clients.

A request is deferred while another one computes the blocks of their common beginning; once these
are full, it finds them in the prefix cache.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncgen.engine.scheduling.state import RequestState


_MIN_STALE = 64

_MAX_IDLE_STEPS = 8
"""Steps without a chunk after which other requests no longer wait for a request's blocks."""


class WaitingQueue:
    """Queue of requests without memory: those of each client by rank, some of them deferred.

    Attributes:
        states: All of them, by id.
        deferred: Requests that are or were deferred, by the block hash that they wait for.
        deferred_states: Requests that are deferred now.
        num_ready: Number of requests of each client that are not deferred.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.states: dict[str, RequestState] = {}
        # Entries of requests that left, or are deferred, go when they come up or grow too many.
        self._heaps: dict[str, list[tuple[tuple[int, int], int, RequestState]]] = {}
        self._pushes = itertools.count()
        self.deferred: dict[bytes, list[RequestState]] = {}
        self.deferred_states: set[RequestState] = set()
        self.num_ready: Counter[str] = Counter()

    def push(self, state: RequestState) -> None:
        """Queue a request whose rank is set."""
        self.states[state.request_id] = state
        heap = self._heaps.setdefault(state.client, [])
        heapq.heappush(heap, (state.rank, next(self._pushes), state))
        self.num_ready[state.client] += 1

    def remove(self, state: RequestState) -> None:
        """Remove a waiting request, deferred or not."""
        del self.states[state.request_id]
        if state in self.deferred_states:
            self.deferred_states.remove(state)
        else:
            self._count_out(state.client)
        heap = self._heaps.get(state.client, [])
        if not self.states:
            self._heaps.clear()
        elif len(heap) > _MIN_STALE + 2 * self.num_ready[state.client]:
            heap[:] = [entry for entry in heap if self._is_ready(entry[2])]
            heapq.heapify(heap)

    def head(self, client: str) -> RequestState | None:
        """Return the next request of a client; ``None`` if none of its requests is ready."""
        heap = self._heaps.get(client, [])
        while heap:
            state = heap[0][2]
            if self._is_ready(state):
                return state
            heapq.heappop(heap)
        self._heaps.pop(client, None)
        return None

    def in_turn(self, client: str = "") -> Iterator[RequestState]:
        """Iterate over the ready requests of a client, next first.

        The caller removes or defers each request; one that it leaves ends the iteration.
        """
        while (state := self.head(client)) is not None:
            yield state
            if self._is_ready(state):
                return

    def ranked(self) -> list[RequestState]:
        """Return all waiting requests, next first, deferred ones included; a copy."""
        return sorted(self.states.values(), key=lambda state: state.rank)

    def defer(self, state: RequestState, block_hash: bytes) -> None:
        """Let others pass a waiting request until ``recall`` is called with this hash."""
        self.deferred_states.add(state)
        self._count_out(state.client)
        self.deferred.setdefault(block_hash, []).append(state)

    def recall(self, block_hash: bytes) -> list[RequestState]:
        """Put the requests that wait for a block back in their places, and return them."""
        waiting = self.deferred_states
        recalled = [state for state in self.deferred.pop(block_hash, ()) if state in waiting]
        for state in recalled:
            waiting.remove(state)
            self.push(state)
        return recalled

    def _count_out(self, client: str) -> None:
        self.num_ready[client] -= 1
        if not self.num_ready[client]:
            del self.num_ready[client]

    def _is_ready(self, state: RequestState) -> bool:
        return self.states.get(state.request_id) is state and state not in self.deferred_states


class PrefixesInProgress:
    """Running requests by the hashes of the blocks that they are about to fill."""

    def __init__(self, queue: WaitingQueue) -> None:
        """Start empty.

        Args:
            queue: Queue whose requests are deferred.
        """
        self._queue = queue
        self._computing: dict[bytes, RequestState] = {}

    def __len__(self) -> int:
        """Return the number of blocks that are being computed for the first time."""
        return len(self._computing)

    def add(self, state: RequestState) -> None:
        """Note that a request computes its blocks, from the first that is not published."""
        for block_hash in state.block_hashes[state.num_published :]:
            self._computing.setdefault(block_hash, state)

    def finish(self, state: RequestState, block_hash: bytes) -> None:
        """Recall the requests that wait for a block, since it is full or never will be."""
        if self._computing.get(block_hash) is state:
            del self._computing[block_hash]
            self._queue.recall(block_hash)

    def remove(self, state: RequestState) -> None:
        """Let others compute the blocks that a request was about to compute."""
        for block_hash in state.block_hashes[state.num_published :]:
            self.finish(state, block_hash)

    def defer(self, state: RequestState, hashes: Sequence[bytes]) -> bool:
        """Defer a waiting request if another one is computing its next blocks.

        It waits for the last of the blocks that this one request computes in a row.

        Args:
            state: The waiting request.
            hashes: Hashes of the blocks that it would have to compute, at least one.

        Returns:
            True if it is deferred.
        """
        running = self._computing.get(hashes[0])
        if running is None:
            return False
        for block_hash in hashes:
            if self._computing.get(block_hash) is not running:
                break
            awaited = block_hash
        running.keep_state_behind(running.block_hashes.index(awaited) + 1)
        self._queue.defer(state, awaited)
        return True

    def stop_waiting_for_idle(self, step: int) -> None:
        """Recall requests for good if the request they wait for computed nothing for some steps.

        Args:
            step: Number of the present step.
        """
        for block_hash in list(self._queue.deferred):
            if self._computing[block_hash].last_chunk < step - _MAX_IDLE_STEPS:
                for state in self._queue.recall(block_hash):
                    state.waits_for_prefix = False

    def check_integrity(self, running: dict[str, RequestState]) -> None:
        """Prove that every awaited block is computed by a running request; for tests.

        Raises:
            AssertionError: It is not so.
        """
        assert all(running.get(state.request_id) is state for state in self._computing.values())
        assert self._computing.keys() >= self._queue.deferred.keys(), "nobody computes a block"
