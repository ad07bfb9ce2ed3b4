"""A finished request's pages serve the next one of its id, as far as it began alike."""

from __future__ import annotations

from asyncgen.engine.kv_cache.block_hashes import block_hashes
from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.scheduling.kept_requests import KeptRequests
from asyncgen.engine.scheduling.state import RequestState
from tests.cases import for_each


def finished(pool: BlockPool, tokens: list[int], name: str = "x") -> RequestState:
    """A request that computed all but its last token."""
    state = RequestState(name, tokens)
    state.num_computed = len(tokens) - 1
    state.block_tables = [pool.take(pool.pages_for(state.num_computed))]
    for page, key in zip(
        state.block_tables[0], block_hashes(tokens[:-1], pool.page_size), strict=False
    ):
        pool.publish(page, key)
    return state


@for_each(
    ("tokens", "num_pages", "common"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 3, 6),
        ([1, 2, 3, 4, 5, 6, 7], 3, 6),
        ([1, 2, 3, 4, 5, 9, 9], 3, 5),
        ([1, 2, 3, 4, 5], 2, 4),
        ([1, 2, 3, 9, 9], 1, 2),
        ([9, 2, 3], 0, 0),
        ([1], 0, 0),
    ],
)
def test_kept_request_is_found_with_its_common_prefix(
    tokens: list[int], num_pages: int, common: int
) -> None:
    pool = BlockPool(8, 2)
    retained = KeptRequests(pool)
    old = finished(pool, [1, 2, 3, 4, 5, 6, 7])
    pool.unpublish(old.block_tables[0][2:])
    retained.keep(old)
    assert retained.find(RequestState("x", tokens)) == ([old.block_tables[0][:num_pages]], common)


def test_only_the_same_id_and_salt_count() -> None:
    pool = BlockPool(8, 2)
    retained = KeptRequests(pool)
    retained.keep(finished(pool, [1, 2, 3]))
    assert retained.find(RequestState("y", [1, 2, 3])) == ([[]], 0)
    assert retained.find(RequestState("x", [1, 2, 3], salt=b"other")) == ([[]], 0)


def test_eviction_gives_pages_back() -> None:
    pool = BlockPool(8, 2, sharing=False)
    retained = KeptRequests(pool)
    for name in "abc":
        retained.keep(finished(pool, [1, 2, 3], name))
    assert "b" in retained.states
    retained.evict("b")
    retained.evict("b")
    assert [state.request_id for state in retained.states.values()] == ["a", "c"]
    assert pool.num_used == 2
    pool.check_integrity(retained.states.values())
    assert [retained.evict_oldest() for _ in range(3)] == [True, True, False]
    assert pool.num_used == 0
