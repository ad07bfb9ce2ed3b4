"""The side lane is driven turn by turn; what fails, fails alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from asyncgen.engine.lane.lane import SideLane
from asyncgen.errors import EngineDiedError
from tests.engine.making import request_for

if TYPE_CHECKING:
    from asyncgen.engine.requests.request import Request
    from tests.doubles.sinks import RecordingSink


class FakeRun:
    """A run of a given number of turns that writes down what happens to it."""

    def __init__(self, log: list[str], name: str, turns: int, fails_at: str = "") -> None:
        self.log, self.name, self.left, self.fails_at = log, name, turns, fails_at

    def turn(self) -> bool:
        self.log.append(self.name)
        if self.fails_at == "turn":
            raise ValueError("turn")
        self.left -= 1
        return self.left > 0

    def end(self, reason: str) -> None:
        if self.fails_at == "end":
            raise ValueError("end")
        self.log.append(f"{self.name}:{reason}")


class Bench:
    """An engine over fake runs."""

    def __init__(self, max_running: int = 8) -> None:
        self.log: list[str] = []
        self.plans: dict[Request, FakeRun | Exception] = {}
        self.sinks: dict[str, RecordingSink] = {}
        self.lane = SideLane(self.start, max_running=max_running)

    def start(self, request: Request) -> FakeRun:
        plan = self.plans[request]
        if isinstance(plan, Exception):
            raise plan
        return plan

    def add(self, name: str, turns: int = 3, fails_at: str = "", **params: Any) -> Request:
        request, self.sinks[name] = request_for(**params)
        self.plans[request] = (
            ValueError("start") if fails_at == "start" else FakeRun(self.log, name, turns, fails_at)
        )
        self.lane.add(request)
        return request

    def run(self) -> str:
        while self.lane.requests:
            self.lane.step()
        return " ".join(self.log)


def test_requests_take_turns_and_end() -> None:
    bench = Bench()
    for name in "ab":
        bench.add(name)
    bench.run()
    assert sorted(bench.log) == sorted("ababab")
    assert not bench.lane.requests
    assert not bench.lane.num_running
    bench.lane.step()  # nothing to do is fine


def test_priority_and_places() -> None:
    bench = Bench(max_running=1)
    bench.add("a", 1)
    bench.add("b", 1, priority=2)
    bench.add("c", 1, priority=1)
    assert (bench.lane.num_running, len(bench.lane.requests)) == (0, 3)
    assert bench.run() == "b c a"


def test_a_failing_turn_or_start_goes_to_its_reader() -> None:
    for fails_at in ("turn", "start"):
        bench = Bench()
        bench.add("bad", fails_at=fails_at)
        bench.add("good")
        assert bench.run().split().count("good") == 3
        [error] = bench.sinks["bad"].items
        assert isinstance(error, ValueError) and str(error) == fails_at
        assert bench.sinks["good"].items == []


def test_abort_running_and_waiting() -> None:
    bench = Bench(max_running=1)
    running, waiting = bench.add("a"), bench.add("b")
    bench.lane.step()
    bench.lane.abort(waiting)
    bench.lane.abort(running)
    bench.lane.abort(running)
    bench.lane.abort(waiting)
    assert bench.run() == "a b:cancelled a:cancelled"


def test_abort_of_an_unknown_request_is_ignored() -> None:
    bench = Bench()
    request, sink = request_for()
    bench.lane.abort(request)
    assert sink.items == []


def test_an_abort_that_fails_goes_to_its_reader() -> None:
    for fails_at, steps in (("end", 0), ("end", 1), ("start", 0)):
        bench = Bench()
        request = bench.add("a", fails_at=fails_at)
        for _ in range(steps):
            bench.lane.step()
        bench.lane.abort(request)
        [error] = bench.sinks["a"].items
        assert isinstance(error, ValueError) and str(error) == fails_at
        assert not bench.lane.requests


def test_abort_all_reaches_everybody() -> None:
    bench = Bench(max_running=2)
    for name in "abcd":
        bench.add(name)
    bench.lane.step()
    bench.lane.abort_all("aborted")
    assert sorted(bench.log) == sorted(["a", *(f"{name}:aborted" for name in "abcd")])
    assert not bench.lane.requests


def test_fail_all_fails_every_request() -> None:
    bench = Bench(max_running=2)
    for name in "abcd":
        bench.add(name)
    bench.lane.step()
    error = EngineDiedError("dead")
    bench.lane.fail_all(error)
    assert all(sink.items == [error] for sink in bench.sinks.values())
    assert not bench.lane.requests


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from(["add", "step", "abort"]),
            st.integers(0, 9),
            st.sampled_from(["", "", "turn", "start", "end"]),
        ),
        max_size=40,
    ),
)
def test_everybody_hears_of_an_end_exactly_once(
    max_running: int, actions: list[tuple[str, int, str]]
) -> None:
    bench = Bench(max_running)
    added: list[Request] = []
    for action, number, fails_at in actions:
        if action == "add":
            added.append(bench.add(str(len(added)), 1 + number % 4, fails_at))
        elif action == "step":
            bench.lane.step()
        elif added:
            bench.lane.abort(added[number % len(added)])
    bench.lane.abort_all("aborted")
    assert not bench.lane.requests
    for number, request in enumerate(added):
        plan = bench.plans[request]
        errors = len(bench.sinks[str(number)].items)
        ends = [line for line in bench.log if line.startswith(f"{number}:")]
        ran_out = isinstance(plan, FakeRun) and plan.left == 0 and plan.fails_at != "turn"
        assert errors + len(ends) + ran_out == 1
