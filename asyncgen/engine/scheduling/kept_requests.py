"""Keep the blocks of finished requests, so that a request of the same id goes on in them.

Kept requests hold their blocks, unlike the prefix cache, and the last block may be partial. The
blocks are freed when their memory is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.cache.layer_groups import first_block
from asyncgen.engine.kv_cache.block_hashes import num_common
from asyncgen.engine.kv_cache.block_pool import blocks_in
from asyncgen.engine.kv_cache.cached_sequence import GONE
from asyncgen.engine.scheduling.state import RequestState

if TYPE_CHECKING:
    from asyncgen.engine.kv_cache.block_pool import BlockPool


class KeptRequests:
    """Finished requests that still hold blocks.

    Attributes:
        states: All of them by id, in the order in which they ended.
    """

    def __init__(self, pool: BlockPool) -> None:
        """Start empty.

        Args:
            pool: Pool of the blocks.
        """
        self._pool = pool
        self.states: dict[str, RequestState] = {}

    def keep(self, state: RequestState) -> None:
        """Keep the tokens and blocks of a finished request, and nothing else of it."""
        self.states[state.request_id] = RequestState(
            state.request_id,
            state.initial_tokens,
            salt=state.salt,
            tokens=state.tokens,
            block_tables=state.block_tables,
            num_gone=state.num_gone,
            num_computed=state.num_computed,
        )

    def evict(self, request_id: str) -> None:
        """Free the blocks of a finished request; an unknown id is fine."""
        state = self.states.pop(request_id, None)
        if state is not None:
            self._pool.release(blocks_in(state.block_tables))

    def evict_oldest(self) -> bool:
        """Free the blocks of the request that ended first; return whether there was one."""
        if not self.states:
            return False
        self.evict(next(iter(self.states)))
        return True

    def find(self, state: RequestState) -> tuple[list[list[int]], int]:
        """Find the blocks that a new request can take over from the finished one of its id.

        Args:
            state: The new request; at least its last token is left to compute.

        Returns:
            Tables to begin with, to be shared before the finished request is evicted, and the
            number of tokens that they cover. The last blocks are partial only if they may be
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
            table[blocks - 1] != GONE and pool.is_private(table[blocks - 1])
            for table in old.block_tables
        ):
            blocks -= 1
            common = blocks * size
        tables = []
        for table, window in zip(old.block_tables, pool.windows, strict=True):
            first = first_block(window, common, size)
            if GONE in table[first:blocks]:
                return nothing
            tables.append([*[GONE] * first, *table[first:blocks]])
        return tables, common
