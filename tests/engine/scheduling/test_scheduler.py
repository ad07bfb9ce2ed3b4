"""Test all policies: blocks, prefixes, preemption, and the same tokens in any mix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncgen.engine.kv_cache.block_pool import BlockPool, Reservation, max_blocks
from asyncgen.engine.kv_cache.cached_sequence import UNREAD
from asyncgen.engine.kv_cache.state_slots import SlotPool
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler, Scheduler
from asyncgen.engine.scheduling.state import RequestState, RequestStatus, ScheduledRow
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each
from tests.doubles.paged import Loop, alone

if TYPE_CHECKING:
    from collections.abc import Callable


class YoungestFirst(Scheduler):
    """An order that a user might write: the opposite of the usual one."""

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        candidates = [*self.running(), *self.waiting()]
        candidates.sort(key=lambda state: -state.arrival)
        return self.schedule(candidates, token_budget, cache_budget)


ORDERS: list[Callable[[BlockPool], Scheduler]] = [
    FIFOScheduler,
    lambda pool: FIFOScheduler(pool, safety_margin=0.0),
    PrefillFirstScheduler,
    YoungestFirst,
]


def fifo(
    num_pages: int = 64, page_size: int = 4, *, sharing: bool = True, retain: bool = False
) -> FIFOScheduler:
    """A scheduler without safety margin."""
    return FIFOScheduler(BlockPool(num_pages, page_size, sharing=sharing), retain, 0.0)


class Mix(RuleBasedStateMachine):
    """Anything that can happen, in any order; the loop checks everything after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: Loop | None = None
        self.states: list[RequestState] = []
        self.reservations: list[Reservation] = []

    @initialize(
        order=st.sampled_from(ORDERS),
        num_pages=st.integers(4, 12),
        page_size=st.integers(1, 4),
        sharing=st.booleans(),
        token_budget=st.sampled_from([1, 3, 8, 100]),
        cache_budget=st.sampled_from([5, 30, 1 << 40]),
        max_running=st.integers(1, 6),
        windows=st.sampled_from([(None,), (None, 3), (4,), (None, 2, 2, 7), (1, 5)]),
        slots=st.none() | st.tuples(st.integers(1, 3), st.integers(0, 4)),
        snapshot_pages=st.integers(1, 3),
    )
    def open(
        self,
        order: Callable[[BlockPool], Scheduler],
        num_pages: int,
        page_size: int,
        sharing: bool,
        token_budget: int,
        cache_budget: int,
        max_running: int,
        windows: tuple[int | None, ...],
        slots: tuple[int, int] | None,
        snapshot_pages: int,
    ) -> None:
        num_pages *= len(windows)
        pool = BlockPool(
            num_pages,
            page_size,
            sharing=sharing,
            windows=windows,
            slots=None if slots is None else SlotPool(*slots),
            snapshot_pages=snapshot_pages,
        )
        scheduler = order(pool)
        scheduler.max_running = max_running
        scheduler.ageing = 4
        self.loop = Loop(scheduler, token_budget=token_budget, cache_budget=cache_budget)

    @rule(
        beginning=st.integers(0, 8),
        rest=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        count=st.integers(1, 6),
        priority=st.integers(-1, 1),
        client=st.sampled_from(["", "a", "b"]),
    )
    def add(self, beginning: int, rest: list[int], count: int, priority: int, client: str) -> None:
        assert self.loop is not None
        prompt = [3] * beginning + rest
        pool = self.loop.scheduler.cache
        needed = max_blocks(pool.windows, pool.page_size, len(prompt) + count - 1)
        if needed > pool.num_pages:
            with pytest.raises(InvalidRequestError, match="give the cache more memory"):
                self.loop.add(prompt, count, priority=priority, client=client)
        else:
            self.states.append(self.loop.add(prompt, count, priority=priority, client=client))

    @precondition(lambda self: self.states)
    @rule(
        data=st.data(),
        given_up=st.integers(0, 4),
        rest=st.lists(st.integers(0, 1), max_size=3),
        count=st.integers(1, 4),
    )
    def go_on(self, data: st.DataObject, given_up: int, rest: list[int], count: int) -> None:
        """The next turn of a text, or of a part of it, whether it has ended or not."""
        assert self.loop is not None
        tokens = data.draw(st.sampled_from(self.states)).tokens
        prompt = [*tokens[: max(len(tokens) - given_up, 1)], *rest]
        pool = self.loop.scheduler.cache
        if max_blocks(pool.windows, pool.page_size, len(prompt) + count - 1) <= pool.num_pages:
            self.states.append(self.loop.add(prompt, count))

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        assert self.loop is not None
        for _ in range(count):
            self.loop.step()

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        assert self.loop is not None
        self.loop.cancel(data.draw(st.sampled_from(self.states)))

    @precondition(lambda self: self.loop is not None and self.loop.scheduler.active_requests)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        assert self.loop is not None
        self.loop.scheduler.preempt(data.draw(st.sampled_from(self.loop.scheduler.running())))

    @rule(share=st.floats(0, 0.6))
    def reserve(self, share: float) -> None:
        assert self.loop is not None
        pool = self.loop.scheduler.cache
        self.reservations.append(pool.reserve(int(share * pool.num_available)))

    @precondition(lambda self: self.reservations)
    @rule()
    def unreserve(self) -> None:
        self.reservations.pop().release()

    @invariant()
    def books_are_right(self) -> None:
        if self.loop is not None:
            self.loop.scheduler.check_integrity()

    def teardown(self) -> None:
        if self.loop is None:
            return
        for reservation in self.reservations:
            reservation.release()
        self.loop.drain()
        self.loop.step()
        pool = self.loop.scheduler.cache
        assert (pool.num_used, pool.num_reserved, pool.num_available) == (0, 0, pool.num_pages)
        for state in self.states:
            has_states = pool.slots is not None
            count = state.max_new_tokens or 0
            expected = alone(state.initial_tokens, count, pool.windows, has_states)
            assert state.status is RequestStatus.FINISHED
            assert state.generated_tokens == expected[: state.generated_len()]
            assert state.cancelled or state.generated_len() == state.max_new_tokens
        if pool.slots is not None:
            assert pool.slots.num_running == pool.slots.num_held == 0
        assert len(self.loop.scheduler._prefixes) == 0
        assert not self.loop.scheduler._queue.deferred_states


Mix.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestMix = Mix.TestCase


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(ORDERS),
    st.lists(
        st.tuples(
            st.integers(1, 20),
            st.integers(1, 8),
            st.integers(0, 3),
            st.sampled_from(["", "a", "b"]),
        ),
        max_size=14,
    ),
    st.integers(8, 14),
    st.sampled_from([2, 5, 40]),
)
def test_the_tokens_are_the_same_in_any_mix(
    order: Callable[[BlockPool], Scheduler],
    requests: list[tuple[int, int, int, str]],
    num_pages: int,
    token_budget: int,
) -> None:
    loop = Loop(order(BlockPool(num_pages, 4)), token_budget=token_budget)
    states = []
    for length, count, gap, client in requests:
        prompt = [1] * (length // 2) + [2] * (length - length // 2)
        states.append(loop.add(prompt, count, client=client))
        for _ in range(gap):
            loop.step()
    loop.drain()
    for state in states:
        assert state.generated_tokens == alone(state.initial_tokens, state.max_new_tokens or 0)


def test_samples_share_the_prompt() -> None:
    loop = Loop(fifo(), token_budget=100)
    states = [loop.add(range(19), 3) for _ in range(5)]
    (row,) = loop.step()
    assert (row.start, row.count, row.is_last) == (0, 19, True)
    rows = loop.step()
    assert [(row.start, row.count) for row in rows] == [(19, 1)] + [(16, 3)] * 4
    assert len({tuple(row.pages[:4]) for row in rows}) == 1
    assert len({row.pages[4] for row in rows}) == 5
    assert [state.num_cached for state in states] == [0, 16, 16, 16, 16]
    assert loop.scheduler.cache.num_used == 4 + 5
    loop.drain()
    assert loop.model.num_computed == 19 + 4 * 3 + 5 * 2


def test_the_last_token_is_always_computed() -> None:
    loop = Loop(fifo(), token_budget=100)
    loop.add(range(16), 1)
    loop.drain()
    again = loop.add(range(16), 1)
    (row,) = loop.step()
    assert (row.start, row.count, again.num_cached) == (12, 4, 12)


def test_others_with_a_common_beginning_wait_for_it() -> None:
    loop = Loop(fifo(), token_budget=8)
    long = loop.add([*range(24), 1, 1])
    loop.step()
    similar, other = loop.add([*range(24), 2]), loop.add([9, 9])
    rows = loop.step()
    assert [row.state for row in rows] == [long]
    loop.token_budget = 12
    rows = loop.step()
    assert [row.state for row in rows] == [long, other]
    rows = loop.step()
    assert similar in [row.state for row in rows]
    assert similar.num_cached == 24
    loop.drain()
    assert loop.model.num_computed == 26 + 1 + 2 + 3 * 3


@pytest.mark.parametrize("way", ["cancel", "preempt", "finish"])
def test_another_request_computes_a_prefix_whose_owner_leaves(way: str) -> None:
    loop = Loop(fifo(), token_budget=8)
    leader = loop.add(range(40))
    followers = [loop.add(range(40)) for _ in range(3)]
    loop.step()
    if way == "cancel":
        loop.cancel(leader)
    elif way == "finish":
        loop.scheduler.finish_request(leader.request_id)
    else:
        loop.scheduler.preempt(leader)
    (row,) = loop.step()
    assert row.state is (leader if way == "preempt" else followers[0])
    assert row.start == 8
    loop.drain()
    expected = alone(list(range(40)), 4)
    assert all(state.generated_tokens == expected for state in followers)


def test_a_follower_may_be_cancelled() -> None:
    loop = Loop(fifo(), token_budget=8)
    loop.add(range(40))
    followers = [loop.add(range(40)) for _ in range(3)]
    loop.step()
    loop.cancel(followers[1])
    loop.step()
    assert loop.scheduler.num_waiting == 2
    loop.drain()
    assert [state.generated_len() for state in followers] == [4, 0, 4]


def test_requests_stop_waiting_for_a_stalled_prefix_owner() -> None:
    class Stuck(FIFOScheduler):
        """Never goes on with the first request."""

        def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
            if self._steps:
                others = [state for state in self.running() if state.arrival]
                return self.schedule([*others, *self.waiting()], token_budget, cache_budget)
            return super().schedule_batch(token_budget, cache_budget)

    loop = Loop(Stuck(BlockPool(64, 4)), token_budget=8)
    loop.add(range(40))
    follower = loop.add(range(40))
    for _ in range(30):
        loop.step()
    assert follower.generated_tokens == alone(list(range(40)), 4)


def test_sharing_can_be_off() -> None:
    loop = Loop(fifo(sharing=False), token_budget=100)
    states = [loop.add(range(19), 2) for _ in range(2)]
    rows = loop.step()
    assert [(row.start, row.count) for row in rows] == [(0, 19)] * 2
    assert not {*rows[0].pages} & {*rows[1].pages}
    loop.drain()
    assert [state.num_cached for state in states] == [0, 0]
    assert loop.scheduler.cache.num_kept == 0


def test_next_chat_turn_computes_only_new_tokens() -> None:
    loop = Loop(fifo(), token_budget=100)
    first = loop.add(range(10), 7)
    loop.drain()
    second = loop.add([*first.tokens, 5, 5, 5], 2)
    (row,) = loop.step()
    assert row.start == second.num_cached == 16
    assert row.count == 4


def test_salt_separates_equal_prefixes() -> None:
    loop = Loop(fifo(), token_budget=100)
    loop.add(range(10))
    loop.drain()
    loop.scheduler.add_waiting_request(RequestState("salted", list(range(10)), salt=b"adapter"))
    (row,) = loop.step()
    assert row.start == 0


def test_the_youngest_gives_way() -> None:
    loop = Loop(fifo(num_pages=6, page_size=2), token_budget=100)
    states = [loop.add([number] * 4, 6) for number in range(3)]
    loop.drain()
    assert states[0].num_preemptions == 0
    assert states[2].num_preemptions > 0
    ends = [states.index(state) for state in loop.ended.values()]
    assert ends == [0, 1, 2]
    assert loop.scheduler.num_preemptions == sum(state.num_preemptions for state in states)


def test_a_row_goes_with_its_pages_and_nobody_comes_in_its_place() -> None:
    class NewestLast(YoungestFirst):
        """The youngest running one first, then those who wait."""

        def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
            candidates = [*reversed(self.running()), *self.waiting()]
            return self.schedule(candidates, token_budget, cache_budget)

    loop = Loop(NewestLast(BlockPool(4, 2, sharing=False)), token_budget=100)
    old, young = loop.add([1, 2], 6), loop.add([3, 4, 5], 4)
    loop.step()
    reservation = loop.scheduler.cache.reserve(1)
    small = loop.add([7], 1)
    # The young one is scheduled before the old one takes its pages.
    (row,) = loop.step()
    assert row.state is old
    assert young.num_preemptions == 1
    assert (small.status, loop.scheduler.cache.num_available) == (RequestStatus.PENDING, 1)
    reservation.release()
    loop.drain()
    assert [state.generated_len() for state in (old, young, small)] == [6, 4, 1]


def test_a_preempted_one_finds_its_pages_again() -> None:
    loop = Loop(fifo(), token_budget=100)
    state = loop.add(range(18), 5)
    loop.step()
    loop.step()
    loop.scheduler.preempt(state)
    assert (state.block_tables, state.num_computed, state.status) == ([], 0, RequestStatus.PENDING)
    (row,) = loop.step()
    # The last page, of which three tokens were computed, is found as well.
    assert (row.start, row.count, row.is_last) == (19, 1, True)
    loop.drain()
    assert state.generated_tokens == alone(list(range(18)), 5)


def test_a_preempted_one_goes_before_later_ones() -> None:
    loop = Loop(fifo(), token_budget=100)
    loop.scheduler.max_running = 2
    states = [loop.add([number] * 5) for number in range(4)]
    loop.step()
    loop.scheduler.preempt(states[0])
    assert loop.scheduler.waiting() == [states[0], states[2], states[3]]
    loop.step()
    assert loop.scheduler.running() == states[:2]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(ORDERS),
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 16)), min_size=2, max_size=10),
    st.integers(8, 12),
)
def test_the_oldest_running_one_always_gets_on(
    order: Callable[[BlockPool], Scheduler], requests: list[tuple[int, int]], num_pages: int
) -> None:
    loop = Loop(order(BlockPool(num_pages, 4)), token_budget=1000)
    for number, (length, count) in enumerate(requests):
        loop.add([number] * length, count)
    while loop.scheduler.has_pending_requests():
        oldest = min(loop.scheduler.running(), key=lambda state: state.arrival, default=None)
        rows = loop.step()
        assert rows
        if oldest is not None:
            assert oldest in [row.state for row in rows]
            assert oldest.num_preemptions == 0 or oldest.arrival > 0


def test_requests_larger_than_the_pool_are_refused() -> None:
    loop = Loop(fifo(num_pages=4, page_size=4))
    with pytest.raises(InvalidRequestError, match=r"`max_new_tokens` is 8: with 10 tokens before"):
        loop.add(range(10), 8)
    with pytest.raises(InvalidRequestError, match="`initial_tokens` is 17"):
        loop.add(range(17), None)
    assert not loop.scheduler.has_pending_requests()
    loop.add(range(10), 7)
    loop.add(range(16), None)


@pytest.mark.parametrize(
    ("tokens", "limit", "message"),
    [([], 1, "at least one token"), ([1], 0, "must be at least 1"), ([1], -1, "at least 1")],
)
def test_nonsense_is_refused(tokens: list[int], limit: int, message: str) -> None:
    scheduler = fifo()
    with pytest.raises(InvalidRequestError, match=message):
        scheduler.add_waiting_request(RequestState("a", tokens, max_new_tokens=limit))


def test_an_id_is_taken_until_it_ends() -> None:
    loop = Loop(fifo(), token_budget=100)
    state = loop.add([1], 2, name="x")
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="must differ"):
            loop.add([1], 1, name="x")
        loop.step()
    with pytest.raises(InvalidRequestError, match="was queued before"):
        loop.scheduler.add_waiting_request(state)
    loop.add([1], 1, name="x")


def test_a_request_that_outgrows_the_pool_fails_alone() -> None:
    loop = Loop(fifo(num_pages=4, page_size=2), token_budget=100)
    endless, other = loop.add([1, 2], None), loop.add([3], 3)
    for _ in range(30):
        loop.step()
    assert endless.status is RequestStatus.FAILED
    assert endless.error == "the cache of 4 pages holds no more of its tokens"
    assert endless.generated_tokens == alone([1, 2], 7)
    assert other.generated_tokens == alone([3], 3)
    assert loop.scheduler.cache.num_used == 0
    assert loop.ended[endless.request_id] is endless
    assert loop.scheduler.take_failed() == []


def test_a_reservation_is_respected_and_waited_for() -> None:
    loop = Loop(fifo(num_pages=6, page_size=2), token_budget=100)
    reservation = loop.scheduler.cache.reserve(3)
    state = loop.add([1, 2, 3], 8)
    for _ in range(10):
        loop.step()
    assert (state.num_computed, state.status) == (6, RequestStatus.DECODING)
    reservation.release()
    loop.drain()
    assert state.generated_tokens == alone([1, 2, 3], 8)


def test_pages_held_back_stay_available() -> None:
    loop = Loop(fifo(num_pages=8, page_size=2), token_budget=100)
    loop.add([1, 2], 2)
    loop.scheduler.held_back = 6
    loop.add([3, 4, 5], 2)
    loop.step()
    assert loop.scheduler.num_running == 1
    loop.step()
    loop.scheduler.cache.reserve(6).release()
    loop.scheduler.held_back = 0
    loop.drain()


def test_small_ones_do_not_pass_a_large_one() -> None:
    loop = Loop(fifo(num_pages=8, page_size=2), token_budget=100)
    loop.add([1] * 6, 4)
    loop.step()
    large = loop.add([2] * 12, 1)
    small = [loop.add([number], 1) for number in range(3, 9)]
    loop.drain()
    order = list(loop.ended.values())
    assert all(order.index(large) < order.index(state) for state in small)


def test_priority_goes_first_but_waiting_counts() -> None:
    loop = Loop(fifo(), token_budget=100)
    loop.scheduler.max_running = 1
    loop.scheduler.ageing = 10
    low, high = loop.add([1], 1), loop.add([2], 1, priority=1)
    assert loop.scheduler.waiting() == [high, low]
    loop.drain()
    assert list(loop.ended) == [high.request_id, low.request_id]
    patient = loop.add([3], 1)
    overtakers = 0
    while patient.request_id not in loop.ended:
        loop.add([4], 1, priority=1)
        loop.step()
        overtakers += 1
    assert 9 <= overtakers <= 12


@pytest.mark.parametrize("order", ORDERS[:3])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_waiting_requests_are_served_in_bounded_time(
    order: Callable[[BlockPool], Scheduler], data: st.DataObject
) -> None:
    # Whatever keeps coming, of whatever priority, the one that waits is served in bounded time.
    loop = Loop(order(BlockPool(12, 4)), token_budget=12)
    loop.scheduler.max_running = 4
    loop.scheduler.ageing = 5
    state = loop.add([5] * data.draw(st.integers(1, 40)), 4, priority=-1)
    arrivals = st.tuples(st.integers(1, 30), st.integers(1, 6), st.integers(-1, 2))
    for _ in range(400):
        if state.status is RequestStatus.FINISHED:
            break
        for length, count, priority in data.draw(st.lists(arrivals, max_size=2)):
            if loop.scheduler.num_waiting < 30:
                loop.add([loop.added] * length, count, priority=priority)
        loop.step()
    assert state.status is RequestStatus.FINISHED


def test_cancelled_ones_leave_from_anywhere() -> None:
    loop = Loop(fifo(), token_budget=6)
    loop.scheduler.max_running = 2
    states = [loop.add([number] * 5) for number in range(4)]
    loop.step()
    scheduler = loop.scheduler
    for state in (states[0], states[1], states[3]):
        scheduler.set_request_cancellation(state.request_id)
        assert scheduler.request_is_cancelled(state.request_id)
    scheduler.set_request_cancellation("nobody")
    assert scheduler.request_is_cancelled("nobody")
    assert not scheduler.request_is_cancelled(states[2].request_id)
    assert scheduler.clear_cancelled_requests() == [states[0], states[1], states[3]]
    assert scheduler.clear_cancelled_requests() == []
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 1)
    assert scheduler.cache.num_used == 0
    loop.drain()


def test_a_mark_does_not_hit_the_next_request_of_that_id() -> None:
    loop = Loop(fifo(), token_budget=6)
    loop.cancel(loop.add([1], 1, name="x"))
    loop.scheduler.finish_request("x")
    loop.add([1], 1, name="x")
    assert loop.scheduler.clear_cancelled_requests() == []
    loop.drain()
    assert loop.ended["x"].generated_len() == 1


def test_rows_of_finished_requests_are_ignored() -> None:
    scheduler = fifo()
    scheduler.add_waiting_request(RequestState("a", list(range(8))))
    rows = scheduler.schedule_batch(100, 100)
    scheduler.finish_request("a")
    scheduler.computed(rows)
    scheduler.check_integrity()
    assert scheduler.cache.num_kept == 0


def test_outputs_of_running_ones_can_be_read() -> None:
    loop = Loop(fifo(), token_budget=100)
    state = loop.add([1, 2], 3)
    read = loop.scheduler.get_active_request_static_outputs
    assert read(state.request_id) == []
    loop.step()
    loop.step()
    assert read(state.request_id) == alone([1, 2], 2)
    loop.drain()
    assert read(state.request_id) == []


def test_pages_may_stay_until_they_are_evicted() -> None:
    loop = Loop(fifo(sharing=False), token_budget=100)
    scheduler = loop.scheduler
    loop.add(range(10), 5, name="x")
    loop.step()
    scheduler.finish_request("x", evict_from_cache=False)
    scheduler.check_integrity()
    assert scheduler.cache.num_used == 3
    assert not scheduler.has_pending_requests()
    with pytest.raises(InvalidRequestError, match="still held; evict them first"):
        loop.add(range(10), 5, name="x")
    scheduler.finish_request("x")
    scheduler.finish_request("x")
    assert scheduler.cache.num_used == 0
    loop.add(range(10), 5, name="x")


@for_each("sharing", [True, False])
@for_each(("common", "start"), [(11, 11), (10, 10), (6, 4), (0, 0)])
def test_request_reuses_the_kept_blocks_of_its_id(sharing: bool, common: int, start: int) -> None:
    loop = Loop(fifo(sharing=sharing, retain=True), token_budget=100)
    first = loop.add(range(10), 5, name="x")
    loop.step()
    loop.step()
    loop.scheduler.finish_request("x", evict_from_cache=False)
    second = loop.add([*first.tokens[:common], 17, 17, 17], 3, name="x")
    (row,) = loop.step()
    # A page that others can find is not written again: there it begins at the page.
    assert row.start == (6 if common == 6 and not sharing else start)
    loop.drain()
    assert second.generated_tokens == alone(second.initial_tokens, 3)
    assert loop.scheduler.cache.num_used == 0


def test_retained_pages_go_when_their_space_is_needed() -> None:
    loop = Loop(fifo(num_pages=6, page_size=2, sharing=False), token_budget=100)
    for name in "ab":
        loop.add([1, 2, 3], 5, name=name)
        loop.step()
        loop.scheduler.finish_request(name, evict_from_cache=False)
    state = loop.add([4, 5, 6], 8)
    loop.step()
    assert (loop.scheduler.cache.num_used, state.num_preemptions) == (6, 0)
    loop.drain()
    assert state.generated_len() == 8
    assert loop.scheduler.cache.num_used == 0


def test_pages_with_unread_tokens_are_published_later() -> None:
    scheduler = fifo(page_size=2)
    state = RequestState("a", [1, 2, 3], max_new_tokens=10)
    scheduler.add_waiting_request(state)
    scheduler.computed(scheduler.schedule_batch(100, 100))
    state.tokens.append(UNREAD)
    scheduler.computed(scheduler.schedule_batch(100, 100))
    assert (state.num_computed, state.num_published) == (4, 1)
    state.tokens[3] = 4
    state.tokens.append(UNREAD)
    scheduler.computed(scheduler.schedule_batch(100, 100))
    assert (state.num_computed, state.num_published) == (5, 2)
    scheduler.check_integrity()
    assert scheduler.schedule_batch(100, 100) == []


def test_clearing_lets_everybody_go() -> None:
    loop = Loop(fifo(num_pages=8), token_budget=6)
    loop.add([9] * 3, 2, name="kept")
    loop.step()
    loop.scheduler.finish_request("kept", evict_from_cache=False)
    states = [loop.add([number] * 5) for number in range(4)]
    loop.step()
    assert loop.scheduler.clear() == states
    assert not loop.scheduler.has_pending_requests()
    assert loop.scheduler.cache.num_used == 0
    loop.scheduler.check_integrity()


def test_step_work_does_not_grow_with_the_waiting_queue() -> None:
    reads = 0

    class Counted(RequestState):
        """Counts how often it is looked at."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            nonlocal reads
            reads += 1
            return super().__getattribute__(name)

    counts = []
    for waiting in (10, 1000):
        scheduler = fifo(num_pages=4000)
        scheduler.max_running = 50
        for number in range(50 + waiting):
            scheduler.add_waiting_request(Counted(str(number), [7] * 9 + [number]))
        for _ in range(3):
            rows = scheduler.schedule_batch(1000, 1 << 40)
            scheduler.computed(rows)
            for row in rows:
                row.state.tokens.append(1)
        assert len(rows) == 50
        reads = 0
        scheduler.computed(scheduler.schedule_batch(1000, 1 << 40))
        counts.append(reads)
    assert counts[0] == counts[1] < 50 * 20


def test_the_next_step_may_be_planned_before_this_one_is_computed() -> None:
    scheduler = FIFOScheduler(BlockPool(30, 2))
    state = RequestState("one", [1, 2, 3])
    scheduler.add_waiting_request(state)
    rows = scheduler.schedule_batch(10, 100)
    scheduler.begun(rows)
    state.tokens.append(UNREAD)
    [following] = scheduler.schedule_batch(10, 100)
    assert (following.start, following.count, following.is_last) == (3, 1, True)
    # Nobody finds the page before it is known to be good.
    other = RequestState("other", [1, 2, 9])
    assert scheduler.cache.lookup(state.block_hashes) == []
    state.tokens[-1] = 7
    scheduler.computed(rows)
    assert state.num_computed == 3 and state.status is RequestStatus.DECODING
    scheduler.computed([following])
    scheduler.add_waiting_request(other)
    scheduler.schedule_batch(10, 100)
    assert other.num_cached == 2 and state.num_computed == 4
    scheduler.check_integrity()
