"""Slots are handed out once, lowest first."""

from __future__ import annotations

import pytest

from asyncgen.engine.scheduling.pages import PagePool
from asyncgen.engine.scheduling.slots import SlotPool


def test_each_slot_has_one_holder() -> None:
    pool = SlotPool(3)
    assert [pool.take(), pool.take(), pool.take()] == [0, 1, 2]
    assert (pool.num_free, pool.num_held) == (0, 3)
    pool.release(2)
    pool.release(0)
    pool.check_integrity([1])
    assert pool.take() == 0
    pool.check_integrity([0, 1])
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity([0])
    with pytest.raises(AssertionError, match="two rows"):
        pool.check_integrity([0, 0])
    with pytest.raises(ValueError, match="`num_slots` is 0"):
        SlotPool(0)


def test_a_pool_with_slots_shares_no_pages() -> None:
    pool = PagePool(4, 2, num_slots=1)
    assert not pool.sharing
    assert pool.occupied == (0, 1)
    assert pool.take_slot() == 0
    assert not pool.has_slot
    assert pool.occupied == (1, 1)
    assert pool.release_slot(0) == -1
    assert pool.has_slot
    plain = PagePool(4, 2)
    assert plain.has_slot
    assert plain.take_slot() == plain.release_slot(-1) == -1
    assert plain.occupied == (0, 4)
