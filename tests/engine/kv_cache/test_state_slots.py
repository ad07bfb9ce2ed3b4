"""Slots: who holds them, what is kept in them, and what makes room first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.kv_cache.cached_sequence import NO_SLOT, CachedSequence
from asyncgen.engine.kv_cache.state_slots import SlotPool

if TYPE_CHECKING:
    from collections.abc import Sequence


class Row(CachedSequence):
    """A row that runs."""

    def __init__(
        self,
        slot: int = NO_SLOT,
        next_slot: int = NO_SLOT,
        num_computed: int = 0,
        block_hashes: Sequence[bytes] = (),
    ) -> None:
        super().__init__(
            slot=slot,
            next_slot=next_slot,
            num_computed=num_computed,
            block_hashes=[*block_hashes],
        )


def left(pool: SlotPool, key: bytes, *, is_important: bool = False) -> int:
    """A snapshot of a row that has ended."""
    pool.start(None)
    slot = pool.take()
    assert pool.publish(slot, key, is_important=is_important)
    pool.end(NO_SLOT, slot)
    return slot


def test_a_row_has_two_slots_in_turn() -> None:
    pool = SlotPool(2)
    assert (pool.num_slots, pool.start(None), pool.take(), pool.take()) == (4, NO_SLOT, 0, 1)
    assert pool.leave(0) == 0
    assert pool.leave(NO_SLOT) == NO_SLOT
    row = Row(1, 0, 3)
    pool.check_integrity([row], 2)
    pool.end(1, 0)
    pool.check_integrity([], 2)
    assert (pool.num_held, pool.num_kept, pool.num_touched) == (0, 0, 2)


def test_published_slot_is_found_and_no_longer_writable() -> None:
    pool = SlotPool(3)
    pool.start(None)
    slot = pool.take()
    assert pool.publish(slot, b"a", is_important=False)
    assert not pool.publish(slot, b"b", is_important=False)
    other = pool.take()
    assert not pool.publish(other, b"a", is_important=False)
    assert pool.leave(slot) == NO_SLOT
    assert pool.knows(b"a")
    assert not pool.knows(b"b")
    assert pool.num_kept == 1
    assert [pool.start(b"a"), pool.start(b"a")] == [slot, slot]
    assert not pool.has_free_row
    rows = [Row(slot, num_computed=2, block_hashes=[b"a"]) for _ in range(2)]
    pool.check_integrity([*rows, Row(other, num_computed=1)], 2)
    assert pool.leave(slot) == NO_SLOT
    pool.end(other)
    pool.end(slot)
    pool.end()
    pool.check_integrity([], 2)
    assert (pool.num_kept, pool.num_running) == (1, 0)


def test_those_on_the_way_make_room_first_and_the_oldest_of_them() -> None:
    pool = SlotPool(1, 2)
    left(pool, b"end", is_important=True)
    for key in (b"one", b"two"):
        left(pool, key)
    pool.end(pool.start(b"one"))  # which makes it worth more than one that was never found
    left(pool, b"three")
    pool.start(None)
    for known in ({b"two", b"three"}, {b"three"}, set[bytes]()):
        assert {key for key in (b"one", b"two", b"three", b"end") if pool.knows(key)} == {
            b"one",
            b"end",
            *known,
        }
        if known:
            pool.take()


def test_demoted_snapshots_are_evicted_first() -> None:
    pool = SlotPool(1, 1)
    for key in (b"answer", b"prompt"):
        left(pool, key, is_important=True)
    pool.demote(b"prompt")
    pool.demote(b"nothing")
    pool.start(None)
    assert pool.take() == 2
    held = pool.take()
    assert pool.knows(b"answer")
    assert not pool.knows(b"prompt")
    assert pool.publish(held, b"other", is_important=True)
    pool.demote(b"other")
    pool.end(2, held)
    pool.check_integrity([], 2)
    assert pool.num_kept == 2


def test_two_slots_for_a_row_always_suffice() -> None:
    pool = SlotPool(2)
    for key in (b"a", b"b", b"c", b"d"):
        left(pool, key, is_important=True)
    held = [slot for _ in range(2) for slot in (pool.start(None), pool.take(), pool.take())]
    assert sorted(held) == [-1, -1, 0, 1, 2, 3]
    assert pool.num_kept == 0
    with pytest.raises(AssertionError, match="more than two"):
        pool.take()
    with pytest.raises(AssertionError, match="has_free_row"):
        pool.start(None)


def test_unpublished_snapshots_are_not_found() -> None:
    pool = SlotPool(1, 1)
    kept = left(pool, b"a")
    pool.start(None)
    slot = pool.take()
    pool.publish(slot, b"b", is_important=True)
    pool.unpublish([b"a", b"b", b"c"])
    assert not pool.knows(b"a")
    assert not pool.knows(b"b")
    assert pool.take() == kept
    assert pool.leave(slot) == slot


def test_integrity_check_finds_wrong_slots() -> None:
    pool = SlotPool(2)
    pool.start(None)
    first, second = pool.take(), pool.take()
    row = Row(first, second, 2, [b"a"])
    pool.check_integrity([row], 2)
    for wrong, said in (
        (Row(first, NO_SLOT, 2), "name the slot"),
        (Row(NO_SLOT, second, 0), "name the slot"),
        (Row(first, second, 0), "lost its state"),
    ):
        with pytest.raises(AssertionError, match=said):
            pool.check_integrity([wrong], 2)
    with pytest.raises(AssertionError, match="those that run"):
        pool.check_integrity([], 2)
    pool.publish(first, b"b", is_important=False)
    with pytest.raises(AssertionError, match="other tokens"):
        pool.check_integrity([row], 2)
    pool.publish(second, b"c", is_important=False)
    with pytest.raises(AssertionError, match="can be found"):
        pool.check_integrity([Row(first, second, 2, [b"b"])], 2)


def test_there_is_room_for_a_row() -> None:
    with pytest.raises(ValueError, match="`num_rows` is 0"):
        SlotPool(0)
    with pytest.raises(ValueError, match="`num_snapshots` is -1"):
        SlotPool(1, -1)


def test_of_a_pool_with_slots_rows_are_what_is_occupied() -> None:
    slots = SlotPool(1)
    pool = BlockPool(4, 2, slots=slots)
    assert pool.occupied == (0, 1)
    slots.start(None)
    assert pool.occupied == (1, 1)
    assert BlockPool(4, 2).occupied == (0, 4)
