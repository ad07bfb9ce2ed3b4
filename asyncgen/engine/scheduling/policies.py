"""The orders that the reference documents name; everything else is in ``Scheduler``."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from asyncgen.engine.scheduling.scheduler import Scheduler
from asyncgen.engine.scheduling.state import RequestStatus, ScheduledRow

if TYPE_CHECKING:
    from asyncgen.engine.kv_cache.block_pool import BlockPool
    from asyncgen.engine.scheduling.state import RequestState


_DECODING = RequestStatus.DECODING


class FIFOScheduler(Scheduler):
    """Decoding requests first, then prompts that were begun, then new ones, each by rank.

    So a prompt that arrives delays the running streams by the chunk that is left of a step's token
    budget. To keep the decoding ones from running out of pages, no new request is admitted beside
    others while ``safety_margin`` of the pool or less is available.
    """

    def __init__(
        self, cache: BlockPool, retain_cache_on_finish: bool = False, safety_margin: float = 0.2
    ) -> None:
        """Start without requests.

        Args:
            cache: The pool that pages come from.
            retain_cache_on_finish: Whether a new request goes on in the pages of a finished one
                of the same id, if these were left in place.
            safety_margin: Share of the pool, from 0 to 1. By default new requests wait while 80 %
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
        """Pages of the safety margin."""
        return int(self.safety_margin * self.cache.num_pages)

    def may_admit(self, state: RequestState) -> bool:
        """Whether enough of the pool is available, or no other request runs."""
        return not self.active_requests or self.cache.num_available > self.num_spare

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        """Choose the rows of the next step; see ``Scheduler.schedule_batch``."""
        decoding, begun = _phases(self.running())
        candidates = chain(decoding, begun, self.in_turn())
        return self.schedule(candidates, token_budget, cache_budget)


class PrefillFirstScheduler(Scheduler):
    """Prompts that were begun first, then decoding requests, then new ones, each by rank.

    A prompt is completed as fast as the token budget allows, at the cost of the running streams.
    """

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        """Choose the rows of the next step; see ``Scheduler.schedule_batch``."""
        decoding, begun = _phases(self.running())
        candidates = chain(begun, decoding, self.in_turn())
        return self.schedule(candidates, token_budget, cache_budget)


def _phases(running: list[RequestState]) -> tuple[list[RequestState], list[RequestState]]:
    """Those that decode, and those whose prompt was begun."""
    decoding = [state for state in running if state.status is _DECODING]
    if len(decoding) == len(running):
        return decoding, []
    return decoding, [state for state in running if state.status is not _DECODING]
