"""Test that a request which continues a text computes none of it again, unseen by others."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.kv_cache.block_hashes import num_common
from asyncgen.engine.kv_cache.block_pool import BlockPool, max_blocks
from asyncgen.engine.kv_cache.block_tables import unshare
from asyncgen.engine.kv_cache.cached_sequence import GONE, UNREAD
from asyncgen.engine.kv_cache.partial_blocks import PartialBlocks
from asyncgen.engine.kv_cache.state_slots import SlotPool
from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.engine.scheduling.state import RequestState
from tests.cases import for_each
from tests.doubles.paged import Loop, alone

if TYPE_CHECKING:
    from collections.abc import Sequence


def opened(
    num_pages: int = 64,
    page_size: int = 8,
    *,
    token_budget: int = 100,
    retain: bool = False,
    sharing: bool = True,
    windows: tuple[int | None, ...] = (None,),
    slots: SlotPool | None = None,
) -> Loop:
    """A loop over so many pages, where all that is asked for is computed at once."""
    pool = BlockPool(num_pages, page_size, sharing=sharing, windows=windows, slots=slots)
    return Loop(FIFOScheduler(pool, retain, 0.0), token_budget=token_budget)


def found(loop: Loop, tokens: Sequence[int], count: int = 1) -> int:
    """Finish a text, check its answer, and return the number of tokens that were found."""
    state = loop.add(tokens, count)
    loop.drain()
    pool = loop.scheduler.cache
    expected = alone(tokens, count, pool.windows, pool.slots is not None)
    assert state.generated_tokens == expected
    return state.num_cached


def test_next_chat_turn_computes_only_new_tokens() -> None:
    loop, text = opened(), list(range(13))
    for turn in range(6):
        state = loop.add(text, 3)
        (row,) = loop.step()
        # The last token of an answer was never computed: it is the next turn's.
        known = len(text) - 3 if turn else 0
        assert (row.start, row.count, state.num_cached) == (known, len(text) - known, known)
        loop.drain()
        assert state.generated_tokens == alone(text, 3)
        text = [*state.tokens, 5, 5]
    assert loop.scheduler.cache.num_used == 0


def test_partial_block_is_reused_in_place_without_copy() -> None:
    loop = opened()
    first = loop.add(range(10), 3)
    loop.step()
    pages = list(first.block_tables[0])
    loop.drain()
    kept = loop.scheduler.cache.num_kept
    loop.add([*first.tokens, 5], 1)
    (row,) = loop.step()
    assert row.pages[:2] == pages[:2]
    loop.drain()
    assert loop.scheduler.cache.num_kept == kept == 2


def test_a_text_may_part_from_the_tail() -> None:
    loop = opened()
    loop.add(range(14), 1)
    loop.drain()
    # The tail holds 8 to 13. Of these, 8 to 10 serve, and what is behind them is overwritten.
    assert found(loop, [*range(11), 6, 6, 6]) == 11
    assert found(loop, [*range(14), 1]) == 11
    assert found(loop, [*range(14), 1, 2]) == 15


@pytest.mark.parametrize(("common", "known"), [(8, 8), (9, 8), (10, 10), (12, 12)])
def test_a_partial_block_that_matches_less_than_half_is_left_alone(common: int, known: int) -> None:
    loop = opened()
    loop.add(range(12), 1)  # leaves 8 to 11
    loop.drain()
    assert found(loop, [*range(common), 30, 30]) == known
    # Who took it over has left another one.
    assert found(loop, [*range(12), 31]) == (known if known == 10 else 12)


def test_two_want_the_same_tail() -> None:
    loop = opened()
    first = loop.add(range(10), 4)
    loop.drain()
    both = [loop.add([*first.tokens, number], 3) for number in (1, 2)]
    loop.step()
    assert [state.num_cached for state in both] == [13, 8]
    assert both[0].block_tables[0][0] == both[1].block_tables[0][0]
    assert both[0].block_tables[0][1] != both[1].block_tables[0][1]
    loop.drain()
    for state in both:
        assert state.generated_tokens == alone(state.initial_tokens, 3)


def test_samples_leave_a_tail_each() -> None:
    loop = opened()
    for number in range(4):
        loop.scheduler.add_waiting_request(RequestState(str(number), [*range(9)]))
    texts = []
    for _ in range(9):
        loop.step()
        for number, state in enumerate(loop.scheduler.running()):
            if state.generated_len() == 1:
                state.tokens[-1] = 20 + number
            elif state.generated_len() == 4:
                texts.append(state.tokens)
                loop.scheduler.finish_request(state.request_id)
    assert [found(loop, [*tokens, 9]) for tokens in texts] == [12] * 4


def test_of_two_with_the_same_tokens_the_newest_stays() -> None:
    loop = opened()
    pool = loop.scheduler.cache
    both = [loop.add([*range(10), 7], 1) for _ in range(2)]
    both[1].waits_for_prefix = False
    loop.drain()
    assert [state.num_cached for state in both] == [0, 0]
    assert pool.num_kept == 2 and len(pool.partial_blocks.by_block) == 1
    assert found(loop, [*range(10), 7, 8]) == 11


def test_partial_blocks_are_evicted_before_the_full_blocks() -> None:
    loop = opened(num_pages=4)
    first = loop.add(range(20), 1)
    loop.drain()
    pool = loop.scheduler.cache
    assert (pool.num_kept, len(pool.partial_blocks.by_block)) == (3, 1)
    pool.reserve(2).release()
    assert (pool.num_kept, len(pool.partial_blocks.by_block)) == (2, 0)
    assert found(loop, [*first.tokens, 5]) == 16


def test_partial_blocks_are_evicted_for_others() -> None:
    loop = opened(num_pages=4)
    pool = loop.scheduler.cache
    for number in range(9):
        found(loop, [*range(8), *[number] * 4])
    assert (len(pool.partial_blocks.by_block), pool.num_kept) == (3, 4)
    assert found(loop, [9] * 25, 5) == 0
    assert len(pool.partial_blocks.by_block) == 1
    pool.forget_kept()
    assert len(pool.partial_blocks.by_block) == pool.num_kept == 0


@for_each("windows", [(8,), (5,), (9,), (None, 5), (3, 12)])
def test_text_that_needs_every_page_reuses_its_partial_block(windows: tuple[int, ...]) -> None:
    """A window sees a page less behind a tail than before it: none that is not seen is counted."""
    for length in range(9, 40):
        loop = opened(max_blocks(windows, 4, length + 13), 4, windows=windows)
        state = loop.add(range(length), 1)
        loop.drain()
        assert found(loop, [*state.tokens, *[5] * 12]) == length


@for_each("windows", [(None, 9), (9,), (None, 3, 21), (7, 18), (2,)])
def test_all_groups_go_on_from_their_tails(windows: tuple[int | None, ...]) -> None:
    loop = opened(200, 4, windows=windows)
    text = list(range(21))
    for turn in range(9):
        state = loop.add(text, 4)
        (row,) = loop.step()
        known = len(text) - 2 if turn else 0
        assert row.start == state.num_cached == known
        for table, window in zip((row.pages, *row.more), windows, strict=True):
            seen = 0 if window is None else max(known + 1 - window, 0) // 4
            assert [page == GONE for page in table] == [n < seen for n in range(len(table))]
        loop.drain()
        assert state.generated_tokens == alone(text, 4, windows)
        text = [*state.tokens, 5]
    assert loop.scheduler.cache.num_used == 0


@pytest.mark.parametrize(("lost", "known"), [(1, 14), (2, 8)])
def test_partial_block_is_reused_if_the_window_needs_no_lost_block(lost: int, known: int) -> None:
    loop = opened(40, 4, windows=(6,))
    state = loop.add(range(14), 2)
    loop.step()
    pages = list(state.block_tables[0])
    loop.scheduler.finish_request(state.request_id)
    # The page before the tail sees 7, and the tail, of 12 and 13, nothing before 9.
    loop.scheduler.cache.unpublish([pages[lost]])
    state = loop.add([*range(14), 8, 8], 3)
    (row,) = loop.step()
    assert row.start == known
    if lost == 1:
        assert row.pages[:4] == [GONE, GONE, *pages[2:4]]
    loop.drain()
    assert state.generated_tokens == alone(state.initial_tokens, 3, (6,))


def test_partial_block_missing_in_one_group_is_not_reused() -> None:
    loop = opened(40, 4, windows=(None, 30))
    pool = loop.scheduler.cache
    loop.add(range(10), 1)
    loop.drain()
    assert len(pool.partial_blocks.by_block) == 2
    pool.unpublish([next(iter(pool.partial_blocks.by_block))])
    assert len(pool.partial_blocks.by_block) == 1
    assert found(loop, [*range(10), 5]) == 8
    assert len(pool.partial_blocks.by_block) == 1 + 2
    # The next one of the same tokens takes the place of what is left of it.
    assert found(loop, range(10)) == 8
    assert len(pool.partial_blocks.by_block) == 2 + 2 and pool.num_kept == 4 + 2 + 2
    assert found(loop, [*range(10), 6]) == 10


@pytest.mark.parametrize("kind", ["no sharing", "states"])
def test_schedulers_without_partial_blocks(kind: str) -> None:
    shares = kind == "states"
    loop = opened(sharing=shares, slots=SlotPool(4, 4) if shares else None)
    first = loop.add(range(21), 4)
    loop.drain()
    assert len(loop.scheduler.cache.partial_blocks.by_block) == 0
    assert found(loop, [*first.tokens, 5]) == (24 if shares else 0)


def test_texts_under_another_salt_find_nothing() -> None:
    loop = opened()
    loop.add(range(13), 2)
    loop.drain()
    other = RequestState("other", [*range(13), 9], max_new_tokens=1, salt=b"other")
    loop.scheduler.add_waiting_request(other)
    loop.drain()
    assert other.num_cached == 0


def test_partial_blocks_without_read_tokens_are_not_kept() -> None:
    scheduler = FIFOScheduler(BlockPool(64, 8))
    for name, unread in (("a", True), ("b", False)):
        state = RequestState(name, [*range(10)], max_new_tokens=9, salt=name.encode())
        scheduler.add_waiting_request(state)
        scheduler.computed(scheduler.schedule_batch(100, 100))
        state.tokens.append(11)
        rows = scheduler.schedule_batch(100, 100)
        scheduler.begun(rows)
        state.tokens.append(UNREAD if unread else 12)
        # Without the token that is to be read: whether what it comes of is good is not known.
        scheduler.preempt(state)
        scheduler.check_integrity()
        if unread:
            state.tokens[-1] = 12
        (row,) = scheduler.schedule_batch(100, 100)
        assert row.start == (10 if unread else 11)
        scheduler.finish_request(name)


def test_partial_blocks_of_unfinished_steps_are_not_kept() -> None:
    scheduler = FIFOScheduler(BlockPool(64, 8))
    state = RequestState("a", [*range(13)])
    scheduler.add_waiting_request(state)
    scheduler.begun(scheduler.schedule_batch(11, 100))
    scheduler.preempt(state)
    scheduler.check_integrity()
    assert scheduler.cache.num_kept == 0


def test_a_prompt_that_nothing_was_sampled_of_leaves_none() -> None:
    scheduler = FIFOScheduler(BlockPool(64, 8))
    for length in (8, 9, 10, 15, 16, 21):
        state = RequestState(str(length), [*range(length)], max_new_tokens=1)
        state.salt = state.request_id.encode()
        scheduler.add_waiting_request(state)
        scheduler.computed(scheduler.schedule_batch(100, 100))
        scheduler.finish_request(state.request_id)
        scheduler.check_integrity()
        again = RequestState("again", [*range(length), 1], salt=state.salt)
        scheduler.add_waiting_request(again)
        (row,) = scheduler.schedule_batch(100, 100)
        assert row.start == length // 8 * 8
        scheduler.finish_request("again")


def test_partial_blocks_of_unshared_requests_are_not_kept() -> None:
    loop = opened()
    pool = loop.scheduler.cache
    state = loop.add(range(13), 9)
    loop.step()
    unshare(pool, state)
    loop.scheduler.finish_request(state.request_id)
    loop.scheduler.check_integrity()
    assert pool.num_kept == len(pool.partial_blocks.by_block) == 0
    assert found(loop, [*range(13), 1]) == 0


def test_an_unpublished_request_leaves_no_partial_block() -> None:
    loop = opened()
    pool = loop.scheduler.cache
    first = loop.add(range(13), 1)
    loop.drain()
    state = loop.add([*first.tokens, 1], 9)
    loop.step()
    assert state.num_cached == 13
    unshare(pool, state)
    loop.scheduler.finish_request(state.request_id)
    assert pool.num_kept == len(pool.partial_blocks.by_block) == 0


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_preempted_request_resumes_at_its_position(steps: int) -> None:
    loop = opened(token_budget=5)
    state = loop.add(range(13), 6)
    for _ in range(steps):
        loop.step()
    computed, is_decoding = state.num_computed, len(state.tokens) > 13
    loop.scheduler.preempt(state)
    loop.scheduler.check_integrity()
    assert not state.block_tables
    (row,) = loop.step()
    # Of a prompt that was not read to its end nobody knows whether there is NaN in it.
    page_size = loop.scheduler.cache.page_size
    known = computed if is_decoding else computed // page_size * page_size
    assert row.start == state.num_cached == known
    assert is_decoding == (steps > 2)
    loop.drain()
    assert state.generated_tokens == alone(range(13), 6)
    assert loop.model.num_computed == 13 + 5 + computed - known


def test_a_tail_does_not_hide_the_page_that_a_leader_computes() -> None:
    loop = opened(token_budget=4)
    text = [*range(30)]
    leader = loop.add(text, 1)
    loop.step()
    loop.step()
    leader.prefill_chunk_size = 1
    twin = loop.add(text[:15], 1)
    twin.waits_for_prefix = False
    for _ in range(3):
        loop.step()
    assert leader.num_computed == 11
    assert twin.num_cached == 8 and len(loop.scheduler.cache.partial_blocks.by_block) == 1
    follower = loop.add([*text[:17], 1, 1], 1)
    loop.drain()
    assert follower.num_cached == 16
    for state in (leader, twin, follower):
        assert state.generated_tokens == alone(state.initial_tokens, 1)


@pytest.mark.parametrize("common", [14, 11, 9])
def test_pages_of_a_predecessor_go_before_a_shorter_tail(common: int) -> None:
    loop = opened(retain=True)
    first = loop.add(range(12), 4, name="x")
    while first.num_computed < 14:
        loop.step()
    loop.scheduler.finish_request("x", evict_from_cache=False)
    found(loop, [*first.tokens[:11], 50, 50])  # leaves 8 to 12, three of them in common
    state = loop.add([*first.tokens[:common], 60, 60], 2, name="x")
    (row,) = loop.step()
    assert row.start == common
    loop.drain()
    assert state.generated_tokens == alone(state.initial_tokens, 2)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)


def test_of_tails_with_as_much_in_common_a_short_one_is_taken() -> None:
    tails = PartialBlocks()
    for page, tail in enumerate([(1, 2, 0, 0, 0, 0), (1, 2, 9)]):
        tails.add(b"before", tail, [page])
    assert tails.find(b"before", [1, 2, 5, 5]) == ((1, 2, 9), 2)
    tails.remove(1)
    assert tails.find(b"before", [1, 2, 5, 5]) is None


@settings(max_examples=300, deadline=None)
@given(st.sets(TOKENS, max_size=12), st.lists(st.integers(0, 2), max_size=9), st.data())
def test_the_partial_block_with_most_common_tokens_is_found(
    contents: set[tuple[int, ...]], text: list[int], data: st.DataObject
) -> None:
    tails = PartialBlocks()
    for page, tail in enumerate(sorted(contents, key=lambda tail: hash((tail, 1)))):
        tails.add(b"before", tail, [page])
    tails.check_integrity(8)
    for page in data.draw(st.sets(st.integers(0, 14))):
        contents -= {tokens for at, (_, tokens) in tails.by_block.items() if at == page}
        tails.remove(page)
        tails.check_integrity(8)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    common = {tail: num_common(tail, text[start:end]) for tail in contents}
    most = max(common.values(), default=0)
    best = tails.find(b"before", text[start:end])
    assert tails.find(b"other", text[start:end]) is None
    if best is not None:
        assert best[1] == common[best[0]] == most > 0
        assert 2 * most >= len(best[0])
    whole = tuple(text[start : start + most])
    assert whole not in contents or best == (whole, most)


def test_the_work_of_a_look_up_does_not_grow_with_the_tails() -> None:
    reads = 0

    class Counted(tuple[int, ...]):
        """Counts how often it is compared."""

        __slots__ = ()

        def __lt__(self, other: tuple[int, ...]) -> bool:
            nonlocal reads
            reads += 1
            return super().__lt__(other)

    counts = []
    for many in (100, 10_000):
        tails, draw = PartialBlocks(), random.Random(1)
        for page in range(many):
            tails.add(b"", Counted(draw.randrange(9) for _ in range(30)), [page])
        reads = 0
        tails.find(b"", [draw.randrange(9) for _ in range(30)])
        counts.append(reads)
    assert counts[1] <= 2 * counts[0] + 2
