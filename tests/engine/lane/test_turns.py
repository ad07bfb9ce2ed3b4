"""Turns go round, newcomers come quickly, nobody starves."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncgen.engine.lane.lane import TurnScheduler


def turns(scheduler: TurnScheduler[str], count: int) -> str:
    """So many turns, one letter each."""
    taken = []
    for _ in range(count):
        scheduler.admit()
        taken.append(scheduler.next_turn() or "-")
    return "".join(taken)


def test_running_ones_take_turns() -> None:
    scheduler: TurnScheduler[str] = TurnScheduler(8)
    for name in "abc":
        scheduler.add(name)
    assert turns(scheduler, 10) == "abacbacbac"
    assert Counter(turns(scheduler, 30)) == Counter("abc" * 10)


def test_a_newcomer_goes_first() -> None:
    scheduler: TurnScheduler[str] = TurnScheduler(8)
    for name in "abc":
        scheduler.add(name)
    turns(scheduler, 20)
    scheduler.add("x")
    assert turns(scheduler, 1) == "x"


def test_two_newcomers_do_not_go_in_a_row() -> None:
    scheduler: TurnScheduler[str] = TurnScheduler(8)
    scheduler.add("a")
    turns(scheduler, 3)
    for name in "xyz":
        scheduler.add(name)
    taken = turns(scheduler, 6)
    assert taken.index("x") == 0
    assert taken[1] not in "yz"


def test_short_requests_do_not_starve_long_ones() -> None:
    # Each newcomer needs a single turn; without care they would always be in front.
    scheduler: TurnScheduler[str] = TurnScheduler(4)
    scheduler.add("a")
    turns(scheduler, 1)
    own = 0
    for number in range(100):
        scheduler.add(f"new{number}")
        scheduler.admit()
        item = scheduler.next_turn()
        assert item is not None
        if item == "a":
            own += 1
        else:
            scheduler.remove(item)
    assert own >= 49


def test_waiting_ones_go_by_priority_then_arrival() -> None:
    scheduler: TurnScheduler[str] = TurnScheduler(1)
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)):
        scheduler.add(name, priority)
    assert list(scheduler.waiting()) == list("bdace")
    taken = []
    while len(scheduler):
        item = scheduler.admit()
        assert item == scheduler.next_turn()
        assert item is not None
        taken.append(item)
        assert scheduler.remove(item)
    assert "".join(taken) == "bdace"
    assert scheduler.next_turn() is None
    assert scheduler.admit() is None


def test_remove_returns_whether_the_item_was_present() -> None:
    scheduler: TurnScheduler[str] = TurnScheduler(1)
    scheduler.add("a")
    scheduler.add("b")
    scheduler.admit()
    assert scheduler.remove("a")
    assert scheduler.remove("b")
    assert not scheduler.remove("a")
    assert len(scheduler) == 0


def test_clear_returns_all() -> None:
    scheduler: TurnScheduler[str] = TurnScheduler(2)
    for name in "abcd":
        scheduler.add(name)
    turns(scheduler, 5)
    assert sorted(scheduler.clear()) == list("abcd")
    assert (scheduler.num_running, scheduler.num_waiting, len(scheduler)) == (0, 0, 0)


@given(st.integers(1, 5), st.lists(st.integers(-2, 2), min_size=1, max_size=12))
def test_all_are_served_equally(max_running: int, priorities: list[int]) -> None:
    scheduler: TurnScheduler[int] = TurnScheduler(max_running)
    for number, priority in enumerate(priorities):
        scheduler.add(number, priority)
    left = dict.fromkeys(range(len(priorities)), 3)
    started = []
    while len(scheduler):
        scheduler.admit()
        item = scheduler.next_turn()
        assert item is not None
        if left[item] == 3:
            started.append(item)
        left[item] -= 1
        if not left[item]:
            scheduler.remove(item)
    assert not any(left.values())
    assert started == sorted(left, key=lambda number: (-priorities[number], number))


class Turns(RuleBasedStateMachine):
    """Requests come, go and take turns in any order; the waits stay bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: TurnScheduler[int] = TurnScheduler(3)
        self.alive: set[int] = set()
        self.waits: dict[int, int] = {}
        self.count = 0

    @rule(priority=st.integers(-1, 1))
    def arrive(self, priority: int) -> None:
        self.scheduler.add(self.count, priority)
        self.alive.add(self.count)
        self.count += 1

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), ends=st.booleans())
    def turn(self, data: st.DataObject, ends: bool) -> None:
        self.scheduler.admit()
        item = self.scheduler.next_turn()
        assert item in self.alive
        self.waits[item] = 0
        for other in self.waits:
            if other != item:
                self.waits[other] += 1
        if ends:
            self.leave(item)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(sorted(self.alive))))

    def leave(self, item: int) -> None:
        assert self.scheduler.remove(item)
        self.alive.remove(item)
        self.waits.pop(item, None)

    @invariant()
    def counts_hold(self) -> None:
        assert len(self.scheduler) == len(self.alive)
        assert self.scheduler.num_running <= self.scheduler.max_running
        assert self.scheduler.num_running + self.scheduler.num_waiting == len(self.alive)

    @invariant()
    def nobody_waits_long(self) -> None:
        assert all(wait <= 2 * self.scheduler.max_running for wait in self.waits.values())


TestTurns = Turns.TestCase


@pytest.mark.gate
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 128)), min_size=2, max_size=5),
    st.integers(2, 8),
)
def test_clients_share_the_rows_of_the_turns(
    clients: list[tuple[int, int]], max_running: int
) -> None:
    """Each client has as many requests and as many rows a request as it likes."""
    scheduler: TurnScheduler[tuple[int, int]] = TurnScheduler(max_running)
    for client, (count, cost) in enumerate(clients):
        for number in range(count * 4):
            scheduler.add((client, number), 10**9 * client, client=str(client), cost=cost)
    spent: Counter[int] = Counter()
    dearest = max(cost for _, cost in clients)
    while sum(spent.values()) < 200 * dearest * len(clients):
        scheduler.admit()
        turn = scheduler.next_turn()
        assert turn is not None
        client, number = turn
        spent[client] += clients[client][1]
        if spent[client] % 3 == 0:  # some end, and others come in their place
            scheduler.remove(turn)
            again = (client, number + 1000)
            scheduler.add(again, client=str(client), cost=clients[client][1])
    even = sum(spent.values()) / len(clients)
    assert all(spent[client] >= 0.9 * even for client in range(len(clients))), spent


def test_a_client_that_comes_to_a_full_lane_has_its_turn() -> None:
    scheduler: TurnScheduler[str] = TurnScheduler(2)
    for number in range(6):
        scheduler.add(f"hog{number}", 2**31, client="hog", cost=64)
    turns(scheduler, 10)
    scheduler.add("late", client="late")
    assert "late" in [scheduler.admit() or "", scheduler.next_turn()]
    assert scheduler.num_running == 3


def test_a_returning_client_keeps_its_account() -> None:
    """Else requests of one dear turn each would be free."""
    scheduler: TurnScheduler[str] = TurnScheduler(4)
    scheduler.add("steady", client="steady")
    rows: Counter[str] = Counter()
    for number in range(300):
        if scheduler.num_running + scheduler.num_waiting < 2:
            scheduler.add(f"{number}", client="passing", cost=64)
        scheduler.admit()
        turn = scheduler.next_turn()
        assert turn is not None
        if turn == "steady":
            rows["steady"] += 1
        else:
            rows["passing"] += 64
            scheduler.remove(turn)
    assert abs(rows["steady"] - rows["passing"]) <= 64
    scheduler.remove("steady")
    scheduler.clear()
    assert not scheduler._debts


@given(st.data())
def test_the_client_with_fewest_turns_is_next(data: st.DataObject) -> None:
    """Looked up by heaps; here all who wait are gone through."""
    scheduler: TurnScheduler[int] = TurnScheduler(data.draw(st.integers(1, 4)))
    clients: dict[int, str] = {}
    for number in range(data.draw(st.integers(1, 60))):
        event = data.draw(st.sampled_from("aattr"))
        if event == "a":
            clients[number] = data.draw(st.sampled_from("abcdef"))
            scheduler.add(number, number % 3, client=clients[number], cost=1 + number % 4)
        elif event == "t":
            scheduler.admit()
            scheduler.next_turn()
        elif clients:
            item = data.draw(st.sampled_from(sorted(clients)))
            assert scheduler.remove(item)
            del clients[item]
        waiting = scheduler.waiting()
        runs = Counter(client for item, client in clients.items() if item not in waiting)
        is_full = scheduler.num_running >= scheduler.max_running
        able = [item for item in waiting if not (is_full and runs[clients[item]])]
        spent = scheduler._spent
        wanted = min(  # of equals the first, in the order of waiting
            able, key=lambda item: (runs[clients[item]], spent[clients[item]]), default=None
        )
        assert scheduler.next_waiting() == wanted
        assert spent.keys() == set(clients.values())


def test_many_clients_that_wait_cost_nothing() -> None:
    calls = []
    for number in (10, 500):
        scheduler: TurnScheduler[int] = TurnScheduler(4)
        for item in range(number):
            scheduler.add(item, client=str(item % (number // 2)))
        turns = [scheduler.admit() and scheduler.next_turn() for _ in range(4)]
        assert len(set(turns)) > 1
        seen: list[str] = []
        sys.setprofile(lambda frame, event, argument: seen.append(event))  # noqa: B023
        try:
            scheduler.next_waiting()
            scheduler.admit()
        finally:
            sys.setprofile(None)
        calls.append(len(seen))
    assert calls[0] == calls[1]
