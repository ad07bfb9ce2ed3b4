"""Pages are in one place at a time; what is left longest makes room first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncgen.engine.kv_cache.block_hashes import block_hashes
from asyncgen.engine.kv_cache.block_pool import BlockPool, OutOfBlocksError, Reservation
from asyncgen.engine.kv_cache.cached_sequence import CachedSequence

if TYPE_CHECKING:
    from collections.abc import Iterable


class Holder(CachedSequence):
    """A sequence with one block table."""

    def __init__(self, pages: list[int], tokens: Iterable[int] = (), num_computed: int = 0) -> None:
        super().__init__(block_tables=[pages], tokens=[*tokens], num_computed=num_computed)

    @property
    def pages(self) -> list[int]:
        return self.block_tables[0]


def hold(pool: BlockPool, tokens: list[int]) -> Holder:
    """Do what a request does: find what is known, take the rest, compute and publish all of it."""
    keys = block_hashes(tokens, pool.page_size)
    known = pool.lookup(keys)
    pool.share(known)
    pages = known + pool.take(pool.pages_for(len(tokens)) - len(known))
    for page, key in zip(pages, keys, strict=False):
        pool.publish(page, key)
    return Holder(pages, tokens, len(tokens))


def test_lowest_ids_first() -> None:
    pool = BlockPool(8, 4)
    first, second = pool.take(3), pool.take(2)
    assert (first, second) == ([0, 1, 2], [3, 4])
    pool.release(first)
    assert pool.take(4) == [0, 1, 2, 5]
    assert pool.num_touched == 6


def test_taking_too_much_takes_nothing() -> None:
    pool = BlockPool(3, 4)
    held = pool.take(2)
    with pytest.raises(OutOfBlocksError, match="2 blocks are wanted, 1 are available"):
        pool.take(2)
    assert (pool.num_used, pool.num_available) == (2, 1)
    pool.check_integrity([Holder(held)])


def test_left_pages_are_found_again() -> None:
    pool = BlockPool(8, 2)
    one = hold(pool, [1, 2, 3, 4, 5])
    pool.release(one.pages)
    assert (pool.num_used, pool.num_kept, pool.num_available) == (0, 2, 8)
    other = hold(pool, [1, 2, 3, 9])
    assert other.pages[0] == one.pages[0]
    assert other.pages[1] not in one.pages[:2]
    pool.check_integrity([other])


def test_the_longest_run_from_the_beginning_counts() -> None:
    pool = BlockPool(8, 1)
    hold(pool, [1, 2, 3])
    keys = block_hashes([1, 2, 3], 1)
    assert pool.lookup(keys) == [0, 1, 2]
    assert pool.lookup(keys[1:]) == [1, 2]
    assert pool.lookup([keys[0], b"other", keys[2]]) == [0]
    assert pool.lookup([]) == []


def test_least_recently_used_prefix_is_evicted_from_its_end() -> None:
    pool = BlockPool(5, 1)
    old, new = hold(pool, [1, 2, 3]), hold(pool, [7, 8])
    pool.release(old.pages)
    pool.release(new.pages)
    left = [[1, 2, 3], [7, 8]]
    for expected in ([2, 2], [1, 2], [0, 2], [0, 1], [0, 0]):
        pool.take(1)
        assert [len(pool.lookup(block_hashes(tokens, 1))) for tokens in left] == expected


def test_use_makes_young_again() -> None:
    pool = BlockPool(4, 1)
    for token in (1, 2, 3, 4):
        pool.release(hold(pool, [token]).pages)
    pool.release(hold(pool, [1]).pages)
    pool.take(3)
    assert [bool(pool.lookup(block_hashes([token], 1))) for token in (1, 2, 3, 4)] == [
        True, False, False, False,
    ]  # fmt: skip


def test_free_pages_go_before_kept_ones() -> None:
    pool = BlockPool(4, 1)
    pool.release(hold(pool, [1, 2]).pages)
    assert pool.take(2) == [2, 3]
    assert pool.num_kept == 2


def test_of_twins_the_first_is_found() -> None:
    pool = BlockPool(4, 2)
    (key,) = block_hashes([1, 2], 2)
    one, other = pool.take(1), pool.take(1)
    pool.publish(one[0], key)
    pool.publish(other[0], key)
    assert pool.lookup([key]) == one
    pool.release(other)
    assert pool.num_kept == 0
    pool.release(one)
    assert pool.num_kept == 1


def test_without_sharing_nothing_is_kept() -> None:
    pool = BlockPool(4, 1, sharing=False)
    one = hold(pool, [1, 2])
    other = hold(pool, [1, 2])
    assert not {*one.pages} & {*other.pages}
    pool.release(one.pages)
    assert (pool.num_kept, pool.num_available) == (0, 2)
    pool.check_integrity([other])


def test_withdrawn_pages_are_not_found() -> None:
    pool = BlockPool(4, 1)
    one, other = hold(pool, [1, 2]), hold(pool, [1, 3])
    pool.unpublish(one.pages)
    assert pool.lookup(block_hashes([1, 2], 1)) == []
    pool.check_integrity([one, other])
    pool.release(one.pages)
    pool.release(other.pages)
    pool.unpublish(other.pages)
    assert (pool.num_kept, pool.num_available) == (0, 4)
    pool.check_integrity([])


def test_reservations_take_kept_pages_but_none_in_use() -> None:
    pool = BlockPool(6, 1)
    one = hold(pool, [1, 2])
    pool.release(hold(pool, [3, 4, 5]).pages)
    reservation = pool.reserve(3)
    assert (pool.num_available, pool.num_reserved, pool.num_kept) == (1, 3, 1)
    pool.check_integrity([one])
    with pytest.raises(OutOfBlocksError):
        pool.reserve(2)
    with pytest.raises(OutOfBlocksError):
        pool.take(2)
    reservation.release()
    reservation.release()
    assert (pool.num_available, pool.num_reserved) == (4, 0)


def test_forget_kept_empties_the_prefix_cache() -> None:
    pool = BlockPool(6, 1)
    one = hold(pool, [1, 2])
    pool.release(hold(pool, [1, 5]).pages)
    pool.forget_kept()
    assert pool.num_kept == 0
    assert pool.lookup(block_hashes([1, 2], 1)) == one.pages
    pool.check_integrity([one])


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 1), (1, 0), (-3, 4)])
def test_sizes_are_checked(num_pages: int, page_size: int) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        BlockPool(num_pages, page_size)


def test_a_large_pool_costs_nothing_at_first() -> None:
    pool = BlockPool(10**12, 16)
    assert pool.take(3) == [0, 1, 2]
    assert pool.num_available == 10**12 - 3


def test_wrong_books_are_noticed() -> None:
    pool = BlockPool(6, 2)
    held = hold(pool, [1, 2, 3, 4, 5])
    pool.check_integrity([held])
    with pytest.raises(AssertionError, match="holders"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="wrong hash"):
        pool.check_integrity([Holder(held.pages, [1, 2, 3, 9, 5], 5)])
    with pytest.raises(AssertionError, match="can be found"):
        pool.check_integrity([Holder(held.pages, held.tokens, 2)])
    with pytest.raises(AssertionError, match="too short"):
        pool.check_integrity([Holder(held.pages, held.tokens, 7)])
    pool.share(held.pages)
    with pytest.raises(AssertionError, match="shared"):
        pool.check_integrity([held, Holder(held.pages, held.tokens, 4)])


class Pool(RuleBasedStateMachine):
    """Anything that requests and reservations can do to a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9, 2)
        self.held: list[Holder] = []
        self.reservations: list[Reservation] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def begin(self, tokens: list[int]) -> None:
        if self.pool.pages_for(len(tokens)) <= self.pool.num_available:
            self.held.append(hold(self.pool, tokens))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), withdrawn=st.booleans())
    def end(self, data: st.DataObject, withdrawn: bool) -> None:
        holder = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if withdrawn:
            self.pool.unpublish(holder.pages)
        self.pool.release(holder.pages)

    @rule(count=st.integers(0, 9))
    def reserve(self, count: int) -> None:
        if count <= self.pool.num_available:
            self.reservations.append(self.pool.reserve(count))
        else:
            with pytest.raises(OutOfBlocksError):
                self.pool.reserve(count)

    @precondition(lambda self: self.reservations)
    @rule(data=st.data())
    def unreserve(self, data: st.DataObject) -> None:
        self.reservations.pop(data.draw(st.integers(0, len(self.reservations) - 1))).release()

    @invariant()
    def books_are_right(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.num_reserved == sum(one.num_pages for one in self.reservations)
        assert self.pool.num_used == len({page for one in self.held for page in one.pages})

    def teardown(self) -> None:
        for holder in self.held:
            self.pool.release(holder.pages)
        for reservation in self.reservations:
            reservation.release()
        assert self.pool.num_available == self.pool.num_pages


TestPool = Pool.TestCase
