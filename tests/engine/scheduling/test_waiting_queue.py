"""The queue gives the lowest rank first, and loses nobody who stands aside."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncgen.engine.scheduling.state import RequestState
from asyncgen.engine.scheduling.waiting_queue import WaitingQueue


def ranked(name: str, *rank: int) -> RequestState:
    """A request with a rank."""
    state = RequestState(name, [1])
    state.rank = (rank[0], rank[1])
    return state


def test_ends_after_one_that_stays() -> None:
    queue = WaitingQueue()
    first, second = ranked("a", 0, 0), ranked("b", 0, 1)
    queue.push(second)
    queue.push(first)
    assert list(queue.in_turn()) == [first]
    assert list(queue.in_turn()) == [first]
    assert queue.ranked() == [first, second]


def test_those_aside_are_passed_until_called() -> None:
    queue = WaitingQueue()
    first, second = ranked("a", 0, 0), ranked("b", 0, 1)
    queue.push(first)
    queue.push(second)
    seen = []
    for state in queue.in_turn():
        seen.append(state)
        if state is first:
            queue.defer(state, b"key")
    assert seen == [first, second]
    assert (len(queue.states), [*queue.deferred]) == (2, [b"key"])
    assert queue.recall(b"key") == [first]
    assert queue.recall(b"key") == []
    assert list(queue.in_turn()) == [first]


def test_the_heap_does_not_outgrow_the_queue() -> None:
    queue = WaitingQueue()
    queue.push(ranked("first", -1, -1))
    for number in range(5000):
        state = ranked(str(number), 0, number)
        queue.push(state)
        queue.remove(state)
    assert len(queue._heaps[""]) < 100


class Queue(RuleBasedStateMachine):
    """Requests come, go, stand aside and come back; the order is always that of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue()
        self.up: list[RequestState] = []
        self.aside: dict[bytes, list[RequestState]] = {}
        self.count = 0

    @rule(level=st.integers(-2, 2))
    def push(self, level: int) -> None:
        state = ranked(str(self.count), level, self.count)
        self.count += 1
        self.queue.push(state)
        self.up.append(state)

    @precondition(lambda self: self.up)
    @rule(key=st.sampled_from([b"x", b"y"]))
    def set_aside(self, key: bytes) -> None:
        state = next(self.queue.in_turn())
        self.queue.defer(state, key)
        self.up.remove(state)
        self.aside.setdefault(key, []).append(state)

    @rule(key=st.sampled_from([b"x", b"y"]))
    def call_back(self, key: bytes) -> None:
        called = self.aside.pop(key, [])
        assert self.queue.recall(key) == called
        self.up += called

    @precondition(lambda self: self.up or self.aside)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        everybody = self.queue.ranked()
        if not everybody:
            return
        state = data.draw(st.sampled_from(everybody))
        self.queue.remove(state)
        for states in (self.up, *self.aside.values()):
            if state in states:
                states.remove(state)

    @precondition(lambda self: self.up)
    @rule()
    def come_again(self) -> None:
        # A preempted request: admitted out of turn, then queued again while its entry is stale.
        state = max(self.up, key=lambda state: state.rank)
        self.queue.remove(state)
        self.queue.push(state)

    @invariant()
    def order_is_that_of_ranks(self) -> None:
        first = next(self.queue.in_turn(), None)
        assert first is min(self.up, key=lambda state: state.rank, default=None)
        everybody = [*self.up, *(state for states in self.aside.values() for state in states)]
        assert self.queue.ranked() == sorted(everybody, key=lambda state: state.rank)
        assert len(self.queue.states) == len(everybody)


TestQueue = Queue.TestCase
