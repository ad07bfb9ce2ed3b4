"""Pages of finished requests that were left in place, for a request of the same id to go on in.

Unlike pages that are merely kept in the pool these have a holder, and the last one may be half
full. They are a convenience all the same: when their space is needed they go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.cache.layer_groups import first_block
from asyncgen.engine.kv_cache.block_hashes import num_common
from asyncgen.engine.kv_cache.block_pool import GONE
from asyncgen.engine.scheduling.state import RequestState

if TYPE_CHECKING:
    from asyncgen.engine.kv_cache.block_pool import BlockPool


class KeptRequests:
    """Finished requests that still hold pages.

    Attributes:
        states: All of them by id, the one that ended first first.
    """

    def __init__(self, pool: BlockPool) -> None:
        """Start without any.

        Args:
            pool: Whose pages.
        """
        self._pool = pool
        self.states: dict[str, RequestState] = {}

    def keep(self, state: RequestState) -> None:
        """Leave a finished request its pages; nothing else of it is kept."""
        self.states[state.request_id] = RequestState(
            state.request_id,
            state.initial_tokens,
            salt=state.salt,
            tokens=state.tokens,
            pages=state.pages,
            more=state.more,
            num_gone=state.num_gone,
            num_computed=state.num_computed,
        )

    def evict(self, request_id: str) -> None:
        """Take the pages of a finished request away; an unknown id is fine."""
        state = self.states.pop(request_id, None)
        if state is not None:
            self._pool.release(state.drop_pages())

    def evict_oldest(self) -> bool:
        """Take the pages away from the request that ended first.

        Returns:
            Whether there was one.
        """
        if not self.states:
            return False
        self.evict(next(iter(self.states)))
        return True

    def known(self, state: RequestState) -> tuple[list[list[int]], int]:
        """What a new request could take over from the finished one of its id.

        Args:
            state: The new request; at least its last token is left to compute.

        Returns:
            What its tables begin with, to be shared before the finished one is evicted, and how
            many tokens of it they hold. The last pages may be half full only if they may be
            written.
        """
        pool = self._pool
        size = pool.page_size
        nothing: tuple[list[list[int]], int] = ([[] for _ in pool.windows], 0)
        old = self.states.get(state.request_id)
        if old is None or old.salt != state.salt:
            return nothing
        common = num_common(old.tokens[: old.num_computed], state.tokens[:-1])
        blocks = pool.pages_for(common)
        if common % size and not all(
            table[blocks - 1] != GONE and pool.is_private(table[blocks - 1]) for table in old.tables
        ):
            blocks -= 1
            common = blocks * size
        tables = []
        for table, window in zip(old.tables, pool.windows, strict=True):
            first = first_block(window, common, size)
            if GONE in table[first:blocks]:
                return nothing
            tables.append([*[GONE] * first, *table[first:blocks]])
        return tables, common
