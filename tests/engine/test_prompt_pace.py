"""How prompts share the steps with those that decode."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.engine.prompt_pace import chunks_between
from tests.engine.batches import Bench

SHORT: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False, "eos_token_id": []}
LONG: dict[str, Any] = SHORT | {"max_new_tokens": 200}


@pytest.mark.parametrize(
    ("num_newcomers", "num_decoding", "expected"),
    [(0, 0, 1), (15, 0, 1), (16, 0, 2), (32, 0, 3), (48, 0, 4), (24, 25, 1)]
    + [(25, 25, 2), (75, 25, 4), (1000, 999, 2), (1, 1000, 1)],
)
def test_the_more_wait_the_more_chunks_come_between(
    num_newcomers: int, num_decoding: int, expected: int
) -> None:
    assert chunks_between(num_newcomers, num_decoding) == expected


def prompt(number: int) -> list[int]:
    """A hundred tokens that no other prompt begins with."""
    return [1 + number % 50, 1 + number // 50, *range(1, 99)]


def burst(clients: list[str], steps: int, **options: Any) -> tuple[list[int], list[int]]:
    """What each step reads of prompts of 100 tokens, one of each client, and what it generates
    for a stream that went on before."""
    bench = Bench(pages=20_000, **{"prefill_chunk_size": None, "max_running": 200, **options})
    bench.add([7, 7, 7], **LONG, client=clients[0])
    bench.step()
    bench.step()
    (first,) = bench.batch.states
    for number, client in enumerate(clients):
        bench.add(prompt(number), client=client, **SHORT)
    read, written, before = [], [], (0, len(first.tokens))
    for _ in range(steps):
        bench.step()
        others = [state for state in bench.batch.states if state is not first]
        now = sum(state.num_computed for state in others), len(first.tokens)
        read.append(now[0] - before[0])
        written.append(now[1] - before[1])
        before = now
    bench.engine.abort_all("cancelled")
    return read, written


def test_in_a_burst_those_that_decode_wait_for_several_chunks() -> None:
    assert burst(["a"] * 100, 9)[1] == [1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert burst(["a"] * 20, 4)[1] == [1, 0, 1, 1]
    assert burst(["a"] * 8, 4)[1] == [1, 1, 1, 1]


def test_each_chunk_is_a_step() -> None:
    read, written = burst(["a"] * 100, 5)
    assert written == [1, 0, 0, 0, 1]
    assert read[1:4] == [256, 256, 256]


def test_whoever_says_how_large_a_chunk_is_says_how_long_streams_may_wait() -> None:
    read, written = burst(["a"] * 100, 4, prefill_chunk_size=64)
    assert written == [1, 1, 1, 1]
    assert read[:1] == [64]


def test_nobody_waits_for_those_that_have_no_seat() -> None:
    assert burst(["a"] * 100, 3, max_running=8)[1] == [1, 1, 1]


def test_nobody_waits_for_those_that_cannot_begin() -> None:
    bench = Bench(pages=260, page_size=4, prefill_chunk_size=None, max_running=200)
    bench.add([7, 7, 7], **LONG)
    bench.step()
    bench.step()
    (first,) = bench.batch.states
    for number in range(100):
        bench.add(prompt(number), **LONG)
    written = []
    for _ in range(30):
        before = len(first.tokens)
        bench.step()
        written.append(len(first.tokens) - before)
    # Eight fit; once they have begun, every step is for those that decode.
    assert 0 < bench.batch._scheduler.num_newcomers and written[-20:] == [1] * 20
    bench.engine.abort_all("cancelled")


def test_one_client_makes_no_burst_beside_others() -> None:
    assert burst(["hog"] * 99 + ["late"], 2)[1] == [1, 1]
    # Of a hundred all have begun behind the first step, and nobody is new.
    assert burst([str(number) for number in range(100)], 2)[1] == [1, 1]


class Clock:
    """A time that a test sets."""

    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("asyncgen.engine.prompt_pace.time.monotonic", lambda: clock.now)
    return clock


def together(number: int, **options: Any) -> Bench:
    """An engine to which so many prompts of 100 tokens have come at once."""
    bench = Bench(pages=20_000, **{"prefill_chunk_size": None, "max_running": 200, **options})
    for which in range(number):
        bench.add(prompt(which), **LONG)
    return bench


def generated(bench: Bench) -> list[int]:
    """How many tokens each request has got."""
    return [len(state.tokens) - 100 for state in bench.batch.states]


def test_those_that_came_together_wait_for_the_prompts_of_all() -> None:
    bench = together(40)
    while not all(generated(bench)):
        assert max(generated(bench)) <= 1
        bench.step()
    assert set(generated(bench)) == {1} and bench.num_steps == -(-40 * 100 // 256)
    bench.step()
    assert set(generated(bench)) == {2}
    bench.engine.abort_all("cancelled")


def test_a_few_that_come_together_do_not_wait() -> None:
    bench = together(16)  # behind the first step fifteen are new
    for _ in range(2):
        bench.step()
    assert max(generated(bench)) == 2
    bench.engine.abort_all("cancelled")


def test_nor_where_somebody_says_how_large_a_chunk_is() -> None:
    bench = together(40, prefill_chunk_size=256)
    for _ in range(2):
        bench.step()
    assert max(generated(bench)) == 2
    bench.engine.abort_all("cancelled")


def test_nobody_waits_longer_than_some_seconds_for_the_prompts_of_others(clock: Clock) -> None:
    bench = together(100)
    for _ in range(10):
        bench.step()
    assert max(generated(bench)) == 1
    clock.now = 2.9
    bench.step()
    assert max(generated(bench)) == 1
    clock.now = 3.0
    bench.step()
    assert max(generated(bench)) == 2
    for _ in range(4):  # from here on they are streams that run
        bench.step()
    assert max(generated(bench)) == 3
    bench.engine.abort_all("cancelled")


def test_a_burst_that_goes_on_is_no_new_one(clock: Clock) -> None:
    bench = together(40)
    for number in range(40, 140):  # more of them with every step
        clock.now += 0.1
        bench.add(prompt(number), **LONG)
        bench.add(prompt(200 + number), **LONG)
        bench.step()
        if clock.now < 2.9:
            assert max(generated(bench)) <= 1
        elif clock.now > 3.2:
            assert max(generated(bench)) >= 2
            break
    bench.engine.abort_all("cancelled")
