"""Test the blocks that texts hold in groups with windows, and the prefixes that they find."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.cache.layer_groups import first_block, plan_groups
from asyncgen.engine.kv_cache.block_hashes import block_hashes, group_hash
from asyncgen.engine.kv_cache.block_pool import BlockPool, CacheSize, blocks_in, max_blocks
from asyncgen.engine.kv_cache.block_tables import find_full_blocks, unshare
from asyncgen.engine.kv_cache.cached_sequence import GONE
from asyncgen.engine.scheduling.kept_requests import KeptRequests
from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.engine.scheduling.state import RequestState
from tests.cache.test_layer_groups import config, one_in_six
from tests.cases import for_each
from tests.doubles.paged import Loop, alone


@for_each("layers", [6, 26])
@for_each("window", [512, 1024])
@for_each(("page_size", "chunk"), [(32, 256), (256, 2048)])
def test_a_long_text_holds_a_quarter_of_what_full_attention_would(
    layers: int, window: int, page_size: int, chunk: int
) -> None:
    plan, length = plan_groups(config(one_in_six(layers), window)), 32_768
    pool = BlockPool(10**5, page_size, windows=plan.windows)
    scheduler = FIFOScheduler(pool)
    state = RequestState("long", [7] * length, max_new_tokens=600)
    scheduler.add_waiting_request(state)
    # A page holds the layers of one group: in such pages, all layers of all positions.
    full = (length + 600) / page_size * layers / plan.depth
    most = 0
    for _ in range(length // chunk + 600):
        rows = scheduler.schedule_batch(chunk, 1 << 40)
        most = max(most, pool.num_used)
        assert pool.num_used == state.allocated_blocks
        scheduler.computed(rows)
        if rows[0].is_last and state.update_and_check_completion(7):
            scheduler.finish_request("long")
            break
    scheduler.check_integrity()
    assert state.generated_len() == 600 and pool.num_used == 0
    assert most <= max_blocks(plan.windows, page_size, length + 600, chunk)
    assert most <= 0.25 * full


def test_a_chunk_is_as_long_as_pages_allow() -> None:
    loop = Loop(FIFOScheduler(BlockPool(7, 4, windows=(8,)), safety_margin=0.0), token_budget=100)
    state = loop.add(range(90), 3)
    [row] = loop.step()
    assert (row.count, state.allocated_blocks) == (28, 7)
    loop.drain()
    assert state.generated_tokens == alone(range(90), 3, (8,))
    assert loop.scheduler.num_preemptions == 0


@settings(max_examples=100, deadline=None)
@given(
    windows=st.lists(st.one_of(st.none(), st.integers(1, 12)), min_size=1, max_size=3),
    unknown=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=6),
    page_size=st.integers(1, 4),
)
def test_the_longest_beginning_that_can_be_gone_on_from(
    windows: list[int | None], unknown: set[tuple[int, int]], page_size: int
) -> None:
    pool = BlockPool(40, page_size, windows=tuple(windows))
    keys = block_hashes(list(range(8 * page_size)), page_size)
    pages = {}
    for group in range(len(windows)):
        for number, key in enumerate(keys):
            if (group, number) not in unknown:
                [page] = pool.take(1)
                pages[group, number] = page
                pool.publish(page, group_hash(key, group))

    def serves(count: int) -> bool:
        return all(
            (group, number) in pages
            for group, window in enumerate(windows)
            for number in range(first_block(window, count * page_size, page_size), count)
        )

    longest = max(count for count in range(9) if serves(count))
    tables, count = find_full_blocks(pool, keys)
    assert count == longest
    for group, (table, window) in enumerate(zip(tables, windows, strict=True)):
        first = first_block(window, count * page_size, page_size)
        assert table == [GONE] * first + [pages[group, n] for n in range(first, count)]


def test_unshared_blocks_are_not_found() -> None:
    pool = BlockPool(40, 2, windows=(None, 4))
    scheduler = FIFOScheduler(pool)
    state = RequestState("x", list(range(14)), max_new_tokens=3)
    scheduler.add_waiting_request(state)
    for _ in range(3):
        scheduler.computed(scheduler.schedule_batch(4, 1 << 40))
    assert state.num_gone == 2 and pool.num_kept == 2
    assert find_full_blocks(pool, state.block_hashes)[1] == 6
    unshare(pool, state)
    assert pool.num_kept == 0 and find_full_blocks(pool, state.block_hashes)[1] == 0
    assert not any(pool.knows(group_hash(key, 1)) for key in state.block_hashes)
    scheduler.check_integrity()


def test_held_pages_come_from_the_beginning_to_the_end() -> None:
    assert blocks_in([[3, 4]]) == [3, 4]
    assert blocks_in([[0, 1, 2, 9], [GONE, 5, 6], [GONE, GONE, 7]]) == [0, 1, 5, 2, 6, 7, 9]


def test_a_finished_text_is_gone_on_in_where_its_window_is_there() -> None:
    pool = BlockPool(40, 2, windows=(None, 4), sharing=False)
    scheduler = FIFOScheduler(pool, retain_cache_on_finish=True)
    retained = scheduler._kept
    state = RequestState("x", list(range(12)), max_new_tokens=3)
    scheduler.add_waiting_request(state)
    for _ in range(3):
        rows = scheduler.schedule_batch(4, 1 << 40)
        scheduler.computed(rows)
    scheduler.finish_request("x", evict_from_cache=False)
    assert isinstance(retained, KeptRequests)
    [full, window] = retained.states["x"].block_tables
    assert window.count(GONE) == 2
    again = RequestState("x", [*range(12), 50, 51])
    assert retained.find(again) == ([full, [GONE] * 4 + window[4:]], 12)
    # Of an earlier place, the window is gone.
    assert retained.find(RequestState("x", [*range(5), 50, 51])) == ([[], []], 0)
    scheduler.add_waiting_request(again)
    [row] = scheduler.schedule_batch(9, 1 << 40)
    assert (row.start, row.count) == (12, 2)
    scheduler.check_integrity()


@given(
    num_pages=st.integers(1, 60),
    windows=st.lists(st.one_of(st.none(), st.integers(1, 12)), min_size=1, max_size=3),
    page_size=st.integers(1, 5),
    limit=st.integers(1, 200),
)
def test_the_longest_text_fits_and_no_longer_one(
    num_pages: int, windows: list[int | None], page_size: int, limit: int
) -> None:
    room = CacheSize(num_pages, page_size, windows=tuple(windows))
    longest = room.longest_text(limit)
    assert longest <= limit
    if longest:
        assert max_blocks(windows, page_size, longest) <= num_pages
    if longest < limit:
        assert max_blocks(windows, page_size, longest + 1) > num_pages
