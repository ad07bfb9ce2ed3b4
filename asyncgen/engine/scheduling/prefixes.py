"""Who computes which prefix right now, so that others with the same beginning can wait for it.

Knows keys and requests, not pages. A page that is computed already is found in the pool; this is
for those that somebody has just begun with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.scheduling.state import RequestState
    from asyncgen.engine.scheduling.waiting import WaitingQueue

__all__ = ["PrefixLeaders"]

_PATIENCE = 8
"""Steps without a chunk after which nobody waits any longer for a prefix to be computed."""


class PrefixLeaders:
    """Running requests by the keys of the pages that they are about to fill."""

    def __init__(self, queue: WaitingQueue) -> None:
        """Start without leaders.

        Args:
            queue: Where those stand who wait for a leader.
        """
        self._queue = queue
        self._leaders: dict[bytes, RequestState] = {}

    def __len__(self) -> int:
        """How many pages are being computed for the first time."""
        return len(self._leaders)

    def lead(self, state: RequestState) -> None:
        """Note that a request computes its pages, from the first that is not published."""
        for key in state.page_keys[state.num_published :]:
            self._leaders.setdefault(key, state)

    def settle(self, state: RequestState, key: bytes) -> None:
        """Note that a request has computed a page, or never will; who waited for it may go on."""
        if self._leaders.get(key) is state:
            del self._leaders[key]
            self._queue.call_back(key)

    def leave(self, state: RequestState) -> None:
        """Let others compute what a request was about to compute."""
        for key in state.page_keys[state.num_published :]:
            self.settle(state, key)

    def awaited_key(self, keys: Sequence[bytes]) -> bytes | None:
        """What a request should wait for.

        Args:
            keys: Keys of the pages that it would have to compute.

        Returns:
            The last key of the run from the beginning that one leader is computing, if any.
        """
        leader = self._leaders.get(keys[0]) if keys else None
        awaited = None
        if leader is not None:
            for key in keys:
                if self._leaders.get(key) is not leader:
                    break
                awaited = key
        return awaited

    def recall_the_impatient(self, step: int) -> None:
        """Call those back for good who wait for somebody who does not get on.

        Args:
            step: Number of the present step.
        """
        for key in self._queue.awaited():
            if self._leaders[key].last_chunk < step - _PATIENCE:
                for state in self._queue.call_back(key):
                    state.waits_for_prefix = False

    def check_integrity(self, running: dict[str, RequestState]) -> None:
        """Prove that every leader runs and that nobody waits for nobody; for tests.

        Raises:
            AssertionError: It is not so.
        """
        assert all(running.get(state.request_id) is state for state in self._leaders.values())
        assert self._leaders.keys() >= {*self._queue.awaited()}, "somebody waits for nobody"
