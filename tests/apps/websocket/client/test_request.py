from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from asyncgen import Timing, TokenLogprob, Usage
from asyncgen_apps.websocket.client.request import GapError, Phase, Request

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE = Usage(3, 2, 1)
TIMING = Timing(0.0, 0.1, 0.5, 5.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def request(**params: object) -> tuple[Request, Clock]:
    clock = Clock()
    return Request({"prompt": "x"}, params, clock), clock


def add(one: Request, seq: int, text: str, first: int | None = None, index: int = 0) -> None:
    one.add(
        seq if first is None else first,
        seq,
        index=index,
        text=text,
        token_ids=[seq],
        logprobs=None,
    )


def test_deltas_become_events_and_a_result() -> None:
    one, clock = request()
    one.accept("t")
    clock.now += 0.25
    add(one, 1, "a")
    entry = TokenLogprob(2, "b", -0.5)
    one.add(2, 2, index=0, text="b", token_ids=[2], logprobs=[entry], time=0.75)
    one.finish(3, [(0, "stop", "END")], USAGE, TIMING)
    first, second, last = one.events
    assert (first.text, first.token_ids, first.time, first.logprobs) == ("a", (1,), 0.25, None)
    assert (second.time, second.logprobs) == (0.75, (entry,))
    assert (last.text, last.finish_reason, last.stop_reason) == ("", "stop", "END")
    assert (last.usage, last.timing) == (USAGE, TIMING)
    result = one.build_result()
    assert (result.text, result.token_ids, result.finish_reason) == ("ab", (1, 2), "stop")
    assert (result.usage, result.timing, result.stop_reason) == (USAGE, TIMING, "END")
    assert result.logprobs == (entry,)


def test_repeated_deltas_and_finishes_are_ignored() -> None:
    one, _ = request()
    one.accept("t")
    add(one, 1, "a")
    add(one, 3, "bc", first=2)
    for seq, text in ((1, "a"), (2, "b"), (3, "c")):
        add(one, seq, text)
    one.finish(4, [(0, "stop", None)], USAGE, TIMING)
    one.finish(4, [(0, "length", None)], USAGE, TIMING)
    assert [event.text for event in one.events] == ["a", "bc", ""]
    assert one.build_result().finish_reason == "stop"


@pytest.mark.parametrize(("first", "seq"), [(3, 3), (1, 2), (5, 9)])
def test_a_gap_and_half_a_repetition_are_errors_and_change_nothing(first: int, seq: int) -> None:
    one, _ = request()
    one.accept("t")
    add(one, 1, "a")
    with pytest.raises(GapError):
        add(one, seq, "x", first=first)
    with pytest.raises(GapError):
        one.finish(7, [(0, "stop", None)], USAGE, TIMING)
    assert one.seq == 1
    assert one.build_result().text == "a"


def test_events_of_several_samples_are_separate() -> None:
    one, _ = request(n=3)
    one.accept("t")
    add(one, 1, "a", index=1)
    add(one, 2, "b", index=0)
    assert one.num_samples == 3
    one.finish(3, [(0, "stop", None), (1, "length", None), (2, "stop", 7)], USAGE, TIMING)
    result = one.build_result()
    assert [sample.text for sample in result.samples] == ["b", "a", ""]
    assert [sample.finish_reason for sample in result.samples] == ["stop", "length", "stop"]
    assert [event.usage for event in one.events] == [None, None, None, None, USAGE]


def test_a_stream_that_was_left_has_figures_by_the_clients_clock() -> None:
    one, clock = request()
    one.accept("t")
    for seq in (1, 2, 3):
        clock.now += 0.5
        add(one, seq, "x")
    clock.now += 1.0
    one.left = True
    result = one.build_result()
    assert result.finish_reason == "cancelled"
    assert result.usage == Usage(0, 3)
    assert result.timing == Timing(None, 0.5, 2.5, 2.0)


def test_an_end_of_our_own_closes_every_open_sample() -> None:
    one, _ = request(n=2)
    one.accept("t")
    add(one, 1, "a")
    one.stop("aborted")
    one.stop("cancelled")
    one.fail(ValueError("too late"))
    assert one.failure is None
    assert [event.finish_reason for event in one.events] == [None, "aborted", "aborted"]
    assert one.events[-1].usage == Usage(0, 1)
    assert one.events[-1].timing is not None
    assert one.phase is Phase.ENDED


def test_failure_keeps_received_text() -> None:
    one, _ = request()
    one.accept("t")
    add(one, 1, "a")
    one.fail(ValueError("oops"))
    result = one.build_result()
    assert (result.text, result.finish_reason) == ("a", "error")


@pytest.mark.parametrize("name", ["n", "num_return_sequences"])
def test_a_refused_number_of_samples_costs_nothing(name: str) -> None:
    refused, _ = request(**{name: 10**18})
    refused.fail(ValueError("too many"))
    assert [sample.finish_reason for sample in refused.build_result().samples] == ["error"]
    stopped, _ = request(**{name: 10**18})
    stopped.stop("aborted")
    assert [event.finish_reason for event in stopped.events] == ["aborted"]
    assert stopped.asked == 10**18


@pytest.mark.anyio
async def test_a_waiting_task_is_woken_by_every_change() -> None:
    one, _ = request()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:  # leaving it waits for every one
            changes: list[Callable[[], None]] = [
                lambda: one.accept("t"),
                lambda: add(one, 1, "a"),
                lambda: one.finish(2, [(0, "stop", None)], USAGE, TIMING),
                one.wake,
            ]
            for change in changes:
                tasks.start_soon(one.wait)
                await anyio.wait_all_tasks_blocked()
                change()
                await anyio.wait_all_tasks_blocked()
