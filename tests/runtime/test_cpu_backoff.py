"""Fewer threads while steps are held up; all again when they are not."""

from __future__ import annotations

from asyncgen.runtime.cpu_threads import FIRST_PAUSE, MOST_PAUSE, MOST_TOKENS, CpuBackoff


class Machine:
    """Steps on a clock that is told how long they take."""

    def __init__(self, threads: int = 2) -> None:
        self.now = 100.0
        self.backoff = CpuBackoff(threads, clock=lambda: self.now)

    def step(self, seconds: float, tokens: int = 1) -> int:
        """A step; how many threads computed it."""
        threads = self.backoff.begin_step()
        self.now += seconds
        self.backoff.end_step(tokens)
        return threads


def test_all_threads_compute_while_nothing_competes() -> None:
    machine = Machine()
    assert {machine.step(0.01 * (1 + number % 2)) for number in range(300)} == {2}


def test_one_long_step_is_nothing() -> None:
    machine = Machine()
    for _ in range(5):
        assert [machine.step(0.01), machine.step(0.5), machine.step(0.01)] == [2, 2, 2]


def test_slow_steps_cost_a_thread_for_a_while() -> None:
    machine = Machine()
    machine.step(0.01)
    assert [machine.step(0.2), machine.step(0.2)] == [2, 2]
    end = machine.now + FIRST_PAUSE
    while machine.now < end:
        assert machine.step(0.02) == 1
    assert {machine.step(0.01) for _ in range(100)} == {2}


def test_pauses_grow_while_steps_stay_slow_and_begin_anew() -> None:
    machine = Machine()
    machine.step(0.01)
    pauses = []
    for _ in range(9):
        while machine.step(0.2) == 2:
            pass
        began = machine.now - 0.2
        while machine.backoff.begin_step() == 1:
            machine.step(0.02)
        pauses.append(round(machine.now - began, 1))
    assert pauses == sorted(pauses)
    assert 2 * FIRST_PAUSE < pauses[3] < MOST_PAUSE <= pauses[-1] < MOST_PAUSE + 1
    for _ in range(2000):
        machine.step(0.01)
    while machine.step(0.2) == 2:
        pass
    began = machine.now - 0.2
    while machine.backoff.begin_step() == 1:
        machine.step(0.02)
    assert machine.now - began < FIRST_PAUSE + 0.3


def test_one_thread_always_computes() -> None:
    machine = Machine(threads=4)
    machine.step(0.01)
    found = [machine.step(0.05) for _ in range(12)]
    assert found == [4, 4, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1]


def test_vocabulary_sizes_are_compared_but_prompts_are_not() -> None:
    machine = Machine()
    for _ in range(5):
        assert machine.step(0.01) == 2
        assert machine.step(0.1, tokens=32) == 2
        assert machine.step(3.0, tokens=MOST_TOKENS + 1) == 2


def test_longer_texts_are_not_slow_steps() -> None:
    machine = Machine()
    seconds = 0.01
    for _ in range(400):
        assert machine.step(seconds) == 2
        seconds *= 1.009
